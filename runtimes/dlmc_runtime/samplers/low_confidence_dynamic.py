"""SDAR's dynamic remasking."""

from collections.abc import Mapping
from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction
from dlmc_runtime.samplers.low_confidence_static import LowConfidenceStatic

DEFAULT_THRESHOLD = 0.85


class LowConfidenceDynamic(LowConfidenceStatic):
    """Commit all positions surer than the threshold, at least as many as the schedule says."""

    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold"})
    defaults: ClassVar[Mapping[str, float]] = {"threshold": DEFAULT_THRESHOLD}

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        sure = block.masked & (prediction.confidence > self.option("threshold"))
        return sure if sure.sum() >= self.count(block) else super().select(prediction, block)
