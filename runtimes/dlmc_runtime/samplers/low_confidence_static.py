"""SDAR's static remasking, and the schedule of all its strategies.

The schedule spreads the block length, not the number of masks, over the steps, so a block that
begins with known tokens is done early. The reference also overwrites known positions when fewer
masks are left than the schedule asks for; here the count is clamped to the masks.
"""

from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler, best
from dlmc_runtime.samplers.schedules import quota


class LowConfidenceStatic(Sampler):
    """Commit a fixed number of the most confident positions at each step."""

    source: ClassVar[str] = "JetAstra/SDAR `generate.py`"
    tempered: ClassVar[bool] = True

    def count(self, block: BlockState) -> int:
        """Return how many positions the schedule commits at this step."""
        length = len(block.masked)
        scheduled = quota(length, self.config.steps or length, block.step)
        return min(scheduled, int(block.masked.sum()))

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        return best(prediction.confidence, block.masked, self.count(block))
