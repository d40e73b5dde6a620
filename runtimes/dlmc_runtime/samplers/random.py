"""LLaDA's random remasking."""

from typing import ClassVar

from dlmc_runtime.samplers.base import Floats, Prediction
from dlmc_runtime.samplers.low_confidence import LowConfidence


class Random(LowConfidence):
    """Commit masked positions in random order (``remasking="random"`` of ML-GSAI/LLaDA)."""

    noisy: ClassVar[bool] = True

    def scores(self, prediction: Prediction) -> Floats:
        """Return the row's own uniform numbers, whatever the model is sure of."""
        if prediction.noise is None:
            raise ValueError("the random sampler needs one uniform number a position")
        return prediction.noise
