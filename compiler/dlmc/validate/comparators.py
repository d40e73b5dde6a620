"""Polygraphy comparators for what an engine answers to a recorded forward."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from polygraphy.comparator import BaseCompareFunc, IterationResult

from dlmc.validate.recording import Arrays, State
from dlmc.validate.report import Place
from dlmc.validate.tolerances import COMMITTED, IDS, Limits
from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.samplers.base import Prediction

NUMBERS = (
    "top_logits",
    "sampled_logit",
    "logsumexp",
    "tempered_logsumexp",
    "entropy",
    "tempered_entropy",
)
MASKED = "masked"


class Answer(IterationResult):  # type: ignore[misc]  # Polygraphy ships no annotations
    """The outputs of one forward, and the forward they belong to."""

    def __init__(self, state: State, outputs: Outputs, kept: Arrays, runner: str) -> None:
        named = outputs.arrays()
        present = {name.replace("past_key_values", "present"): v for name, v in kept.items()}
        super().__init__({**named, **present}, runtime=0.0, runner_name=runner)
        self.state, self.head = state, outputs


@dataclass(frozen=True)
class Finding:
    """What the comparison of one output of one forward found; true where it agrees.

    Attributes:
        compared: how many values.
        wrong: how many of them differ by more than is allowed.
        difference: the largest difference of numbers, infinite for NaN.
        place: where it is; None where all is equal.
    """

    compared: int
    wrong: int
    difference: float = 0.0
    place: Place | None = None

    def __bool__(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.wrong


Findings = OrderedDict[str, Finding]


class Numbers(BaseCompareFunc):  # type: ignore[misc]
    """Every number of the head and the cache must be within the tolerance of its output."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def __call__(self, ours: Answer, reference: Answer) -> Findings:
        """Compare one forward."""
        names = [name for name in reference if name in NUMBERS or name.startswith("present.")]
        return OrderedDict((name, self._compare(name, ours, reference)) for name in names)

    def _compare(self, name: str, ours: Answer, reference: Answer) -> Finding:
        found, wanted = ours[name].astype(np.float64), reference[name].astype(np.float64)
        limit = self._limits["present" if name.startswith("present.") else name]
        with np.errstate(invalid="ignore"):
            gap = np.abs(found - wanted)
        gap = np.where(np.isfinite(gap), gap, np.inf)
        if name == "sampled_logit":  # of another token it says nothing: `BestTokens` counts those
            gap = np.where(ours["sampled_id"] == reference["sampled_id"], gap, 0.0)
        excess = gap - (limit.atol + limit.rtol * np.abs(np.nan_to_num(wanted)))
        index = _index((excess if (excess > 0).any() else gap).argmax(), gap.shape)
        place = None
        if gap[index]:
            values = float(ours[name][index]), float(reference[name][index])
            place = _place(reference.state, name, index, *values)
        return Finding(gap.size, int((excess > 0).sum()), float(gap.max()), place)


class BestTokens(BaseCompareFunc):  # type: ignore[misc]
    """The best id must agree wherever the reference's margin leaves no doubt.

    Where its two best logits are no further apart than twice the tolerance, they may change
    places without either engine being wrong.

    Args:
        limits: what decides what is sure. Strict ones for lossy engines too: a share of
            disagreement is allowed them instead.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def __call__(self, ours: Answer, reference: Answer) -> Findings:
        """Compare one forward."""
        sure = margin(reference.head) > doubt(reference.head, self._limits)
        return OrderedDict((name, self._compare(name, ours, reference, sure)) for name in IDS)

    def _compare(
        self, name: str, ours: Answer, reference: Answer, sure: NDArray[np.bool_]
    ) -> Finding:
        found, wanted = (_best(answer[name]) for answer in (ours, reference))
        wrong = (found != wanted) & sure
        place = None
        if wrong.any():
            index = _index(wrong.argmax(), wrong.shape)
            values = int(found[index]), int(wanted[index])
            place = _place(reference.state, name, index, *values)
        return Finding(int(sure.sum()), int(wrong.sum()), place=place)


class CommittedSet(BaseCompareFunc):  # type: ignore[misc]
    """The sampler must commit the same tokens at the same positions on both sides' outputs.

    A position is not counted where a change of the reference's confidences within ``limits``
    would change whether it is committed, or, where both commit it, where another token is as good.

    Args:
        limits: how far confidences and logits may be off. Strict ones for lossy engines too: a
            share of disagreement is allowed them instead.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def __call__(self, ours: Answer, reference: Answer) -> Findings:
        """Compare one forward; says nothing about one that commits nothing."""
        state = reference.state
        if state.choice is None:
            return OrderedDict()
        choice, count = state.choice, len(state.choice.block.masked)
        found, wanted = choice.predict(ours.head), choice.predict(reference.head)
        if not np.isfinite(found.confidence).all():
            found_set = np.zeros(count, bool)  # the sampler would stop here
        else:
            found_set = choice.select(found)
        wanted_set = choice.select(wanted)
        one_side = found_set ^ wanted_set
        tokens = found_set & wanted_set & (found.tokens != wanted.tokens)
        tokens &= (margin(reference.head) > doubt(reference.head, self._limits))[0, :count]
        wrong = tokens | (one_side & ~self._undecided(reference, wanted_set, one_side))
        place = None
        if wrong.any():
            at = int(wrong.argmax())
            values = [
                int(prediction.tokens[at]) if chosen[at] else MASKED
                for prediction, chosen in ((found, found_set), (wanted, wanted_set))
            ]
            place = Place(
                COMMITTED,
                state.prompt,
                state.forward,
                state.task.head_start + at,
                (),
                *values,
            )
        compared = int((found_set | wanted_set).sum())
        return OrderedDict({COMMITTED: Finding(compared, int(wrong.sum()), place=place)})

    def _undecided(
        self, reference: Answer, wanted: NDArray[np.bool_], asked: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which of ``asked`` change sides within the tolerance of all confidences.

        The worst case for a position is that it is less sure by the tolerance and all others are
        surer, or the other way round; the real sampler says whether that decides otherwise.
        """
        undecided = np.zeros_like(asked)
        choice = reference.state.choice
        if choice is None:
            return undecided
        prediction = choice.predict(reference.head)
        scale = np.exp(self._slack(reference)[: len(asked)])
        for at in np.flatnonzero(asked):
            others = np.where(wanted[at], scale, 1 / scale)
            others[at] = 1 / others[at]
            moved = _surer(prediction, others)
            undecided[at] = choice.select(moved)[at] != wanted[at]
        return undecided

    def _slack(self, reference: Answer) -> NDArray[np.float64]:
        """Return [R]: how far the logarithm of a confidence may be off in row 0."""
        logit, total = self._limits["sampled_logit"], self._limits["logsumexp"]
        slack: NDArray[np.float64] = (
            logit.atol
            + logit.rtol * np.abs(reference.head.sampled_logit[0].astype(np.float64))
            + total.atol
            + total.rtol * np.abs(reference.head.logsumexp[0].astype(np.float64))
        )
        return slack


def _surer(prediction: Prediction, by: NDArray[np.float64]) -> Prediction:
    """Return a prediction of which every position is ``by`` times as sure, by any measure."""
    margin, entropy = prediction.margin, prediction.entropy
    return replace(
        prediction,
        confidence=prediction.confidence * by,
        margin=None if margin is None else margin * by,
        entropy=None if entropy is None else entropy - np.log(by),
    )


def margin(outputs: Outputs) -> NDArray[np.float32]:
    """Return the gap between the two best logits, [B,R]; infinite where K is 1."""
    logits = outputs.top_logits
    if logits.shape[-1] == 1:
        return np.full(logits.shape[:-1], np.inf, np.float32)
    gap: NDArray[np.float32] = logits[..., 0] - logits[..., 1]
    return gap


def doubt(outputs: Outputs, limits: Limits) -> NDArray[np.float64]:
    """Return the margin, [B,R], up to which the two best ids may change places."""
    limit = limits["top_logits"]
    doubtful: NDArray[np.float64] = 2 * (
        limit.atol + limit.rtol * np.abs(outputs.top_logits[..., 0].astype(np.float64))
    )
    return doubtful


def _best(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    best: NDArray[np.int64] = ids[..., 0] if ids.ndim > 2 else ids
    return best


def _index(flat: np.intp, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))


def _place(
    state: State, output: str, index: tuple[int, ...], ours: float, reference: float
) -> Place:
    """Say which token of the row an index of an output belongs to."""
    if output.startswith("present."):
        position = int(state.inputs.position_ids[0, index[1]])
    else:
        batch, row = index[:2]
        fed = int(state.inputs.head_rows[batch, row])
        position = int(state.inputs.position_ids[batch, fed])
    return Place(output, state.prompt, state.forward, position, index, ours, reference)
