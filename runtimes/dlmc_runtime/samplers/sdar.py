"""SDAR's three remasking strategies.

The schedule spreads the block length, not the number of masks, over the steps, so a block that
begins with known tokens is done early. The reference also overwrites known positions when fewer
masks are left than the schedule asks for; here the count is clamped to the masks.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler, best
from dlmc_runtime.samplers.schedules import quota

DEFAULT_THRESHOLD = 0.85
_SOURCE = "JetAstra/SDAR `generate.py`"


class LowConfidenceStatic(Sampler):
    """Commit a fixed number of the most confident positions at each step."""

    source: ClassVar[str] = _SOURCE
    tempered: ClassVar[bool] = True

    def count(self, block: BlockState) -> int:
        """Return how many positions the schedule commits at this step."""
        length = len(block.masked)
        scheduled = quota(length, self.config.steps or length, block.step)
        return min(scheduled, int(block.masked.sum()))

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        return best(prediction.confidence, block.masked, self.count(block))


class LowConfidenceDynamic(LowConfidenceStatic):
    """Commit all positions surer than the threshold, at least as many as the schedule says."""

    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold"})
    defaults: ClassVar[Mapping[str, float]] = {"threshold": DEFAULT_THRESHOLD}

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        sure = block.masked & (prediction.confidence > self.option("threshold"))
        return sure if sure.sum() >= self.count(block) else super().select(prediction, block)


class Sequential(LowConfidenceStatic):
    """Commit the leftmost masked positions, as many as the schedule says."""

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        return block.masked & (np.cumsum(block.masked) <= self.count(block))
