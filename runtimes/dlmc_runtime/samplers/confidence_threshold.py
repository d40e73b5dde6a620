"""Fast-dLLM's threshold for whole answers of Dream."""

from collections.abc import Mapping
from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, best
from dlmc_runtime.samplers.maskgit_plus import MaskgitPlus


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
