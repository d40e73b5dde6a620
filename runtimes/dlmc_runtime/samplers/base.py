"""What a sampler sees and what it answers. Pure arithmetic on small arrays."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.samplers.config import SamplerConfig

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Prediction:
    """One row's answer for the ``n`` positions of its block.

    Attributes:
        tokens: int64 [n], the token each position would take.
        confidence: float64 [n], the probability of that token.
        noise: float64 [n] uniform numbers, for samplers that ask for them.
    """

    tokens: Ints
    confidence: Floats
    noise: Floats | None = None


@dataclass(frozen=True)
class BlockState:
    """Where a block stands.

    Attributes:
        masked: bool [n], the positions still to be fixed.
        step: denoising forwards this block has had before this one.
        masks: how many positions were masked when the block was entered.
    """

    masked: Bools
    step: int
    masks: int


class Sampler:
    """Chooses, after a forward, which masked positions to commit.

    Class attributes say what the loop must provide: ``tempered`` whether confidence is taken
    after temperature (Dream, SDAR) or before it (LLaDA); ``noisy`` whether `Prediction.noise`
    is drawn.
    """

    tempered: ClassVar[bool] = False
    noisy: ClassVar[bool] = False

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return bool [n]: the positions to commit, a subset of ``block.masked``."""
        raise NotImplementedError


def quota(total: int, steps: int, step: int) -> int:
    """Spread ``total`` commits over ``steps``: the first ``total % steps`` get one more."""
    return total // steps + (step < total % steps) if step < steps else total


def best(scores: Floats, masked: Bools, count: int) -> Bools:
    """Mark the ``count`` masked positions with the highest scores, the lowest position at ties."""
    order = np.argsort(np.where(masked, -scores, np.inf), kind="stable")
    chosen = np.zeros_like(masked)
    chosen[order[: min(count, int(masked.sum()))]] = True
    return chosen
