"""Hierarchical decoding: divide and conquer runs of masks."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Bools, Ints, Prediction, best, marked
from dlmc_runtime.samplers.ranked import Ranked


class Hierarchy(Ranked):
    """Commit what is sure, and the best position of every run of masks that is sure enough.

    Every run of masked positions without a gap gives its most confident one where that is above
    ``low_threshold``; positions above ``threshold`` and the best of all are committed anyway.
    """

    source: ClassVar[str] = "inclusionAI/dInfer `python/dinfer/decoding/parallel_strategy.py`"
    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "threshold", "low_threshold", "defer_ids"}
    )
    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9, "low_threshold": 0.4}

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        scores = self.deferred(prediction.confidence, prediction)
        low = self.option("low_threshold")
        heads = [
            run[np.argmax(scores[run])] for run in runs(block.masked) if scores[run].max() > low
        ]
        sure = scores > self.option("threshold")
        chosen = block.masked & sure | best(scores, block.masked, 1)
        return chosen | marked(block.masked, np.array(heads, np.int64))

    def idle(self, block: BlockState) -> bool:
        """Return False: the best one is always committed."""
        del block
        return False


def runs(masked: Bools) -> list[Ints]:
    """Return the positions of every run of masks without a gap."""
    positions = np.flatnonzero(masked)
    if not len(positions):
        return []
    return np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
