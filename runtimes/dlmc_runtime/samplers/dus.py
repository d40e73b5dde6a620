"""The dilated unmasking schedule (DUS)."""

from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler


class Dus(Sampler):
    """Commit positions ever closer to one another: log2(n) steps a block, whatever the model says.

    Round r commits the masked positions at multiples of n // 2^r, up to the round in which that is
    1. With a ``threshold`` a position less sure than that waits for a later round; the last takes
    all. (The reference never comes back to such positions and leaves them masks; and it merges a
    last round that is smaller than the one before, which a power of two never has.)
    """

    source: ClassVar[str] = "omerlux/DUS `generate.py`, arXiv 2506.19037"
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold"})

    def _scheduled(self, block: BlockState) -> tuple[Bools, bool]:
        """Return the positions of this round, bool [n], and whether it is the last."""
        length = len(block.masked)
        stride = max(length >> min(block.step + 1, length), 1)
        return block.masked & (np.arange(length) % stride == 0), stride == 1

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        chosen, last = self._scheduled(block)
        if self.config.threshold is not None and not last:
            chosen &= prediction.confidence >= self.config.threshold
        return chosen

    def idle(self, block: BlockState) -> bool:
        """Return whether no position of this round is a mask."""
        return not self._scheduled(block)[0].any()
