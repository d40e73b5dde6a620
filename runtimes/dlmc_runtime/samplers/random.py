"""LLaDA's random remasking."""

from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, best, needed
from dlmc_runtime.samplers.ranked import Ranked


class Random(Ranked):
    """Commit masked positions in random order, whatever the model is sure of."""

    source: ClassVar[str] = 'ML-GSAI/LLaDA `generate.py`, `remasking="random"`'
    needs: ClassVar[frozenset[str]] = frozenset({"noise"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "schedule", "eps"})

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]: those of the row's largest numbers."""
        return best(needed(prediction.noise, "noise"), block.masked, self.count(block))

    def idle(self, block: BlockState) -> bool:
        """Return whether the schedule commits nothing at this step."""
        return self.count(block) == 0
