"""Comparing one engine with the reference, state by state."""

from collections.abc import Mapping, Sequence

import numpy as np

from dlmc.validate.recording import State, stored
from dlmc.validate.report import Row
from dlmc_runtime.engines.base import Engine, Outputs
from dlmc_runtime.manifest import Tolerance

DEFAULT = Tolerance(atol=1e-3)
_NUMBERS = ("top_logits", "logsumexp", "entropy", "tempered_logsumexp")


class _Worst:
    """The largest difference seen of one output, and whether all stayed within tolerance."""

    def __init__(self, output: str, tolerance: Tolerance) -> None:
        self.output, self.tolerance = output, tolerance
        self.difference, self.where, self.count, self.ok = 0.0, "", 0, True

    def numbers(self, forward: int, ours: np.ndarray, reference: np.ndarray) -> None:
        """Compare floats; NaN counts as infinitely different."""
        gap = np.abs(ours.astype(np.float64) - reference)
        gap = np.where(np.isfinite(gap), gap, np.inf)
        self.count += gap.size
        allowed = self.tolerance.atol + self.tolerance.rtol * np.abs(reference)
        self.ok &= bool((gap <= allowed).all())
        index = np.unravel_index(int(gap.argmax()), gap.shape)
        if gap[index] > self.difference or not self.where:
            self.difference = float(gap[index])
            place = ",".join(map(str, index))
            self.where = (
                f"forward {forward} [{place}]: {ours[index]:.8g}, not {reference[index]:.8g}"
            )

    def ids(self, forward: int, ours: np.ndarray, reference: np.ndarray, sure: np.ndarray) -> None:
        """Compare token ids where the reference's margin leaves no doubt."""
        wrong = (ours != reference) & sure
        self.count += int(sure.sum())
        self.difference += int(wrong.sum())
        if wrong.any() and self.ok:
            index = tuple(np.argwhere(wrong)[0])
            place = ",".join(map(str, index))
            self.where = f"forward {forward} [{place}]: {ours[index]}, not {reference[index]}"
        self.ok &= not wrong.any()

    def row(self) -> Row:
        return Row(
            self.output, self.count, self.difference, self.tolerance.atol, self.ok, self.where
        )


def compare_states(
    states: Sequence[State], engine: Engine, tolerances: Mapping[str, Tolerance]
) -> list[Row]:
    """Replay recorded forwards on ``engine`` and compare every output of the head and the cache.

    A top-1 id must agree wherever the reference's two best logits are further apart than twice
    the tolerance: closer ones may change places without either engine being wrong.
    """
    tolerance = {name: tolerances.get(name, DEFAULT) for name in (*_NUMBERS, "present")}
    worst = {name: _Worst(name, limit) for name, limit in tolerance.items()}
    worst["top_ids"] = _Worst("top_ids", Tolerance(atol=0.0))
    for forward, state in enumerate(states, 1):
        outputs, cache = state.replay(engine)
        for name in _NUMBERS:
            worst[name].numbers(forward, getattr(outputs, name), getattr(state.outputs, name))
        sure = _margin(state.outputs) > 2 * tolerance["top_logits"].atol
        best, wanted = outputs.top_ids[..., 0], state.outputs.top_ids[..., 0]
        worst["top_ids"].ids(forward, best, wanted, sure)
        kept = stored(cache, state.stores)
        for name, wanted in stored(state.after, state.stores).items():
            worst["present"].numbers(forward, kept[name], wanted)
    if not any(state.stores for state in states):
        del worst["present"]  # a family without a cache stores nothing
    return [worst[name].row() for name in worst]


def _margin(outputs: Outputs) -> np.ndarray:
    """Return the gap between the two best logits, [B,R]; infinite where K is 1."""
    logits = outputs.top_logits
    if logits.shape[-1] == 1:
        return np.full(logits.shape[:-1], np.inf)
    gap: np.ndarray = logits[..., 0] - logits[..., 1]
    return gap
