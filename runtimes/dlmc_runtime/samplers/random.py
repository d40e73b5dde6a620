"""LLaDA's random remasking."""

from typing import ClassVar

from dlmc_runtime.samplers.base import Floats, Prediction, needed
from dlmc_runtime.samplers.ranked import Ranked


class Random(Ranked):
    """Commit masked positions in random order (``remasking="random"`` of ML-GSAI/LLaDA)."""

    needs: ClassVar[frozenset[str]] = frozenset({"noise"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "schedule", "eps"})

    def scores(self, prediction: Prediction) -> Floats:
        """Return the row's own uniform numbers, whatever the model is sure of."""
        return needed(prediction.noise)
