"""The dilated unmasking schedule (DUS, arXiv 2506.19037)."""

from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler

BASE = 2


class Dus(Sampler):
    """Commit positions ever closer to one another: log2(n) steps a block, whatever the model says.

    Round r of R = ceil(log2 n) commits the masked positions at multiples of n // 2^r. With a
    ``threshold`` a position less sure than that waits for a later round; the last takes all.
    """

    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold"})

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        length = len(block.masked)
        rounds = max(int(np.ceil(np.log2(length))), 1)
        number = block.step + 1
        if number >= rounds:
            return block.masked.copy()
        stride = max(length // BASE**number, 1)
        chosen = block.masked & (np.arange(length) % stride == 0)
        if self.config.threshold is not None:
            chosen &= prediction.confidence >= self.config.threshold
        return chosen
