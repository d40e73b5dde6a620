"""Dream's orders and schedule.

Scores are taken after temperature, then top-p, then top-k. A schedule of `steps` over the whole
answer says how many positions each step commits.

Fast-dLLM's copy of this code ranks by entropy whatever order it is asked for once it decodes in
blocks, and loses the last step of a block where there is one step a block; here every order works
in blocks, and the last step commits all that is left.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers import schedules
from dlmc_runtime.samplers.base import BlockState, Bools, Floats, Prediction, best, needed
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.ranked import Ranked

_HEEDED = frozenset({"steps", "threshold", "factor", "schedule", "eps", "alg_temp", "defer_ids"})
_SOURCE = "DreamLM/Dream `generation_utils.py`, arXiv 2508.15487"


class MaskgitPlus(Ranked):
    """Commit the most probable predictions first.

    With ``alg_temp`` above 0 positions are drawn without replacement, in proportion to
    exp(score / alg_temp), instead of taken in order.
    """

    source: ClassVar[str] = f"{_SOURCE}; MaskGIT, arXiv 2202.04200"
    tempered: ClassVar[bool] = True
    nucleus_first: ClassVar[bool] = True
    schedule: ClassVar[schedules.Schedule] = "dream"
    heeds: ClassVar[frozenset[str]] = _HEEDED

    @classmethod
    def asks_for(cls, config: SamplerConfig) -> frozenset[str]:
        """Return what it needs: noise as well where positions are drawn."""
        drawn = bool(config.alg_temp) and "alg_temp" in cls.heeds
        return cls.needs | ({"noise"} if drawn else frozenset())

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        if not self.config.alg_temp or self.bounded:
            return super().select(prediction, block)
        # The largest of score + Gumbel noise are such a draw (arXiv 1903.06059).
        uniform = np.clip(needed(prediction.noise, "noise"), np.finfo(float).tiny, None)
        scores = self.scores(prediction) / self.config.alg_temp - np.log(-np.log(uniform))
        return best(self.deferred(scores, prediction), block.masked, self.count(block))


class TopkMargin(MaskgitPlus):
    """Commit first where the best token is farthest ahead of the second."""

    source: ClassVar[str] = _SOURCE
    needs: ClassVar[frozenset[str]] = frozenset({"margin"})

    def scores(self, prediction: Prediction) -> Floats:
        """Return the margins, float64 [n]."""
        return needed(prediction.margin, "margins")


class Entropy(MaskgitPlus):
    """Commit first where the distribution has the least entropy."""

    source: ClassVar[str] = _SOURCE
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def scores(self, prediction: Prediction) -> Floats:
        """Return minus the entropies, float64 [n]."""
        return -needed(prediction.entropy, "entropies")


class Origin(MaskgitPlus):
    """Commit every position with the probability that the reverse process gives it."""

    source: ClassVar[str] = _SOURCE
    needs: ClassVar[frozenset[str]] = frozenset({"noise"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "eps"})

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        steps = self.config.steps or len(block.masked)
        if block.step + 1 >= steps:
            return block.masked.copy()
        times = schedules.dream_times(steps, self.config.eps)
        moves = 1.0 - times[block.step + 1] / times[block.step]
        return block.masked & (needed(prediction.noise, "noise") < moves)

    def idle(self, block: BlockState) -> bool:
        """Return False: how many positions move is chance."""
        del block
        return False


class ConfidenceThreshold(MaskgitPlus):
    """Commit what is sure, but no more than a quota that grows by what was not.

    Every step considers as many of the best as its share of the masks, and as many more as the
    step before left undone; of these it commits the best one and all at least ``threshold`` sure.
    """

    source: ClassVar[str] = (
        'NVlabs/Fast-dLLM `dream/model/generation_utils.py`, `alg="confidence_threshold"`'
    )
    limited: ClassVar[bool] = False
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "defer_ids"})
    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9}

    def begin(self) -> None:
        """Leave nothing undone."""
        self._left = 0

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        scores = self.deferred(prediction.confidence, prediction)
        share = block.masks // (self.config.steps or block.masks or 1)
        wanted = min(max(share, 1) + self._left, int(block.masked.sum()))
        considered = best(scores, block.masked, wanted)
        chosen = considered & (scores >= self.option("threshold")) | best(scores, block.masked, 1)
        self._left = wanted - int(chosen.sum())
        return chosen

    def idle(self, block: BlockState) -> bool:
        """Return False: the best one is always committed."""
        del block
        return False
