"""Ranking masked positions, and how many of the best to commit."""

from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers import schedules
from dlmc_runtime.samplers.base import BlockState, Bools, Floats, Prediction, Sampler, best


class Ranked(Sampler):
    """Commit the positions that rank highest.

    With ``threshold`` all whose confidence is at least that, and always the best one; with
    ``factor`` the longest prefix in rank r whose confidence is at least 1 - factor / (r + 1), and
    always the best one (Fast-dLLM, arXiv 2505.22618); otherwise as many as the schedule says.

    Subclasses say what the schedule ranks positions by. The two bounds are of confidence, and rank
    by it, whatever that is: an entropy is no probability.
    """

    schedule: ClassVar[schedules.Schedule] = "uniform"
    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "threshold", "factor", "schedule", "eps", "defer_ids"}
    )

    def scores(self, prediction: Prediction) -> Floats:
        """Return what the schedule ranks positions by, float64 [n]."""
        return prediction.confidence

    @property
    def bounded(self) -> bool:
        """Whether confidence sets the pace, and not the schedule."""
        return self.config.threshold is not None or self.config.factor is not None

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        if self.config.threshold is not None:
            return self.above(self.config.threshold, prediction, block)
        if self.config.factor is not None:
            scores = self.deferred(prediction.confidence, prediction)
            return best(scores, block.masked, self._parallel(scores[block.masked]))
        scores = self.deferred(self.scores(prediction), prediction)
        return best(scores, block.masked, self.count(block))

    def above(self, threshold: float, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions at least that sure, and always the surest, bool [n]."""
        scores = self.deferred(prediction.confidence, prediction)
        sure = block.masked & (scores >= threshold)
        return sure | best(scores, block.masked, 1)

    def count(self, block: BlockState) -> int:
        """Return how many positions the schedule commits at this step."""
        steps = self.config.steps or len(block.masked)
        left, step = int(block.masked.sum()), block.step
        kind = self.config.schedule or self.schedule
        if kind == "uniform":
            # The last step takes all: one that was decided without the sampler may have left more.
            return left if step + 1 >= steps else schedules.quota(block.masks, steps, step)
        if kind == "dream":
            return schedules.dream(left, steps, step, self.config.eps)
        if kind == "rnd1":
            return schedules.rnd1(block.masks, left, steps, step)
        counts = schedules.reverse_process(block.masks, steps, kind)
        return counts[step] if step < len(counts) else left

    def idle(self, block: BlockState) -> bool:
        """Return whether this step commits nothing, whatever the model says."""
        return not self.bounded and self.count(block) == 0

    def deferred(self, scores: Floats, prediction: Prediction) -> Floats:
        """Rank predictions of ``defer_ids`` below all others, in their own order."""
        if not self.config.defer_ids:
            return scores
        deferred = np.isin(prediction.tokens, self.config.defer_ids)
        return np.where(deferred, scores - np.ptp(scores) - _FAR, scores)

    def _parallel(self, scores: Floats) -> int:
        """Return how many of the best candidates pass Fast-dLLM's factor bound.

        Scores fall and bounds rise, so that those that pass are the first ones.
        """
        bounds = factor_bounds(len(scores), self.config.factor or 0.0)
        return int((np.sort(scores)[::-1] >= bounds).sum())


# How far below all others deferred predictions are ranked: no threshold reaches them there.
_FAR = 1000.0


def factor_bounds(count: int, factor: float) -> Floats:
    """Return 1 - factor / (r + 1) for the ranks r = 1, 2, ..., of which the first binds nobody."""
    bounds: Floats = 1.0 - factor / np.arange(2, count + 2, dtype=np.float64)
    bounds[:1] = -np.inf
    return bounds
