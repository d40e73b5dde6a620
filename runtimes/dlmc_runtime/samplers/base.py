"""What a sampler sees and what it answers. Pure arithmetic on small arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.samplers.config import SamplerConfig

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Candidates:
    """The best tokens of each position, and what their probabilities are made of.

    Attributes:
        ids: int64 [n,K], best first.
        logits: float64 [n,K], before temperature.
        logsumexp: float64 [n], of all logits.
    """

    ids: Ints
    logits: Floats
    logsumexp: Floats

    @property
    def logprobs(self) -> Floats:
        """Log-probabilities before temperature, float64 [n,K]."""
        return self.logits - self.logsumexp[:, None]


@dataclass(frozen=True)
class Choices:
    """What a constraint chooses from.

    Attributes:
        ids: int64 [n,K], the best tokens of each position.
        scores: float64 [n,K], what they count for: log-probabilities after temperature and
            filters, with noise where tokens are drawn.
        chances: float64 [n,K], the probabilities that the sampler's confidence is made of.
        floor: float64 [n], what any other token counts for.
        rest: float64 [n], the probability of each other token if all are as probable.
    """

    ids: Ints
    scores: Floats
    chances: Floats
    floor: Floats
    rest: Floats

    def part(self, positions: slice) -> "Choices":
        """Return those of some positions."""
        return Choices(
            self.ids[positions],
            self.scores[positions],
            self.chances[positions],
            self.floor[positions],
            self.rest[positions],
        )


@dataclass(frozen=True)
class Prediction:
    """One row's answer for the ``n`` positions of its block.

    Those from ``margin`` to ``noise`` are there only for samplers whose ``needs`` name them.

    Attributes:
        tokens: int64 [n], the token each position would take.
        confidence: float64 [n], the probability of that token.
        margin: float64 [n], how much more probable the best token is than the second.
        entropy: float64 [n], in nats.
        candidates: the best tokens and their logits.
        shadow: `Candidates` of the positions fed a second time.
        noise: float64 [n] uniform numbers in [0, 1).
        choices: what a constraint chooses from, where there is one.
    """

    tokens: Ints
    confidence: Floats
    margin: Floats | None = None
    entropy: Floats | None = None
    candidates: Candidates | None = None
    shadow: Candidates | None = None
    noise: Floats | None = None
    choices: Choices | None = None

    @property
    def finite(self) -> bool:
        """Whether every number in it is one."""
        parts: list[Floats | None] = [self.confidence, self.margin, self.entropy]
        for found in (self.candidates, self.shadow):
            parts += [] if found is None else [found.logits, found.logsumexp]
        return all(part is None or bool(np.isfinite(part).all()) for part in parts)


@dataclass(frozen=True)
class EditIds:
    """Ids with which a prediction changes the length of a text.

    Attributes:
        mask: what an undecided position holds.
        delete: takes its position out.
        split: puts a mask before what its position holds.
    """

    mask: int
    delete: int
    split: int


@dataclass(frozen=True)
class BlockState:
    """Where a block stands.

    Attributes:
        masked: bool [n], the positions still to be fixed.
        step: denoising forwards this block has had before this one.
        masks: how many positions were masked when the block was entered.
        tokens: int64 [n], what the positions hold.
        given: bool [n], positions that may not be changed.
        edits: the ids that delete and insert, of a model that has them.
    """

    masked: Bools
    step: int
    masks: int
    tokens: Ints | None = None
    given: Bools | None = None
    edits: EditIds | None = None


@dataclass(frozen=True)
class Rewritten:
    """A block as a sampler leaves it that may replace what was decided.

    Attributes:
        tokens: int64 [n], what the positions hold from now on.
        masked: bool [n], which of them are still to be fixed.
        final: whether the sampler is done with the block.
        forced: whether a limit was reached, and masks filled because of it.
    """

    tokens: Ints
    masked: Bools
    final: bool
    forced: bool = False


class Sampler:
    """Chooses, after a forward, which masked positions to commit. One object serves one row.

    Attributes:
        source: where the method comes from.
        tempered: whether confidence is taken after temperature and filters (Dream, SDAR) or
            before temperature (LLaDA).
        nucleus_first: whether top-p goes before top-k (Dream) or after it (SDAR).
        limited: whether `steps` is a limit, at which the masks that are left are committed.
        revises: whether it may reopen positions it has committed in the same block, or replace
            their tokens.
        rewrites: whether it is asked to `rewrite` a block, with masks or without, until it says
            that the block is final.
        alone: whether it heeds nothing but ``heeds``, and none of what every other sampler does.
        needs: which of `Prediction`'s optional parts it asks for.
        heeds: options of `SamplerConfig`, besides those that every sampler heeds, that it heeds.
        defaults: what those of them are that are None.
    """

    source: ClassVar[str] = ""
    tempered: ClassVar[bool] = False
    nucleus_first: ClassVar[bool] = False
    limited: ClassVar[bool] = True
    revises: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    rewrites: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    heeds: ClassVar[frozenset[str]] = frozenset({"steps"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({})

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config
        self.begin()

    def begin(self) -> None:
        """Forget the steps before: a block begins."""

    def option(self, name: str) -> float:
        """Return a number of the configuration, or this sampler's default of it."""
        given: float | None = getattr(self.config, name)
        return self.defaults[name] if given is None else given

    @classmethod
    def asks_for(cls, config: SamplerConfig) -> frozenset[str]:
        """Return which of `Prediction`'s optional parts it needs with these options."""
        del config
        return cls.needs

    def adjust(self, prediction: Prediction, block: BlockState) -> Prediction:
        """Return the prediction to go by, where it is not the model's own."""
        del block
        return prediction

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return bool [n]: the positions to commit, a subset of ``block.masked``."""
        raise NotImplementedError

    def idle(self, block: BlockState) -> bool:
        """Return whether this step commits nothing, whatever the model says."""
        del block
        return False

    def reopen(self, prediction: Prediction, block: BlockState, chosen: Bools) -> Bools:
        """Return bool [n]: positions committed before that become masks again."""
        del prediction, block
        return np.zeros_like(chosen)

    def rewrite(self, prediction: Prediction, block: BlockState) -> Rewritten:
        """Return the whole block as it is from now on; only of samplers that rewrite."""
        raise NotImplementedError


def needed(part: Part | None, name: str) -> Part:
    """Return a part of a prediction or a state that the sampler cannot do without.

    Raises:
        ValueError: it is None.
    """
    if part is None:
        raise ValueError(f"the sampler needs {name} and was given none")
    return part


def best(scores: Floats, masked: Bools, count: int) -> Bools:
    """Mark the ``count`` masked positions with the highest scores, the lowest position at ties."""
    return marked(masked, ranked(scores, masked)[: max(count, 0)])


def ranked(scores: Floats, masked: Bools) -> Ints:
    """Return the masked positions, best score first, the lowest position at ties."""
    positions: Ints = np.flatnonzero(masked)
    return positions[np.argsort(-scores[positions], kind="stable")]


def marked(like: Bools, positions: Ints) -> Bools:
    """Return bool [n], true at ``positions``."""
    chosen = np.zeros_like(like)
    chosen[positions] = True
    return chosen
