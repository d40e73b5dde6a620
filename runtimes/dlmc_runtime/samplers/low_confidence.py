"""LLaDA's low-confidence remasking, with Fast-dLLM's two rules for parallel decoding."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Prediction, needed
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.ranked import Ranked


class LowConfidence(Ranked):
    """Commit the most confident masked positions of the block.

    Confidence is the probability of the token before temperature. dllm's samplers are this with
    the ``linear`` schedule, Nemotron's released one is this with a ``threshold``. Of
    ``uncounted_ids`` only those among a position's candidates are left out of its distribution.
    """

    source: ClassVar[str] = (
        "ML-GSAI/LLaDA `generate.py`, arXiv 2502.09992; threshold and factor: NVlabs/Fast-dLLM, "
        "arXiv 2505.22618"
    )
    heeds: ClassVar[frozenset[str]] = Ranked.heeds | {"uncounted_ids"}

    @classmethod
    def asks_for(cls, config: SamplerConfig) -> frozenset[str]:
        """Return what it needs: candidates as well where some ids do not count."""
        return cls.needs | ({"candidates"} if config.uncounted_ids else frozenset())

    def adjust(self, prediction: Prediction, block: BlockState) -> Prediction:
        """Return the prediction, its confidence taken without the ids that do not count."""
        del block
        ids = self.config.uncounted_ids
        if not ids:
            return prediction
        found = needed(prediction.candidates, "candidates")
        left_out = np.where(np.isin(found.ids, ids), np.exp(found.logprobs), 0.0).sum(axis=1)
        rest = prediction.confidence / np.maximum(1.0 - left_out, np.finfo(np.float64).tiny)
        counted = ~np.isin(prediction.tokens, ids)
        return replace(prediction, confidence=np.where(counted, rest, 0.0))
