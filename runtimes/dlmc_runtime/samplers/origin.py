"""Dream's random order."""

from typing import ClassVar

from dlmc_runtime.samplers import schedules
from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, needed
from dlmc_runtime.samplers.maskgit_plus import DREAM, MaskgitPlus


class Origin(MaskgitPlus):
    """Commit every position with the probability that the reverse process gives it."""

    source: ClassVar[str] = DREAM
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
