"""SDAR's sequential strategy."""

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction
from dlmc_runtime.samplers.low_confidence_static import LowConfidenceStatic


class Sequential(LowConfidenceStatic):
    """Commit the leftmost masked positions, as many as the schedule says."""

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        return block.masked & (np.cumsum(block.masked) <= self.count(block))
