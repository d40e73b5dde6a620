"""What the samplers of NVIDIA's evaluation harness for Nemotron share.

All rank masked positions by confidence and always commit the best one.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Floats,
    Prediction,
    Sampler,
    marked,
    ranked,
)


class ByRank(Sampler):
    """Commits those of the ranked positions that a rule keeps."""

    source: ClassVar[str] = "Blaizzy/mlx-vlm `models/nemotron_labs_diffusion/language.py`"
    tempered: ClassVar[bool] = True
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "most"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"threshold": 0.9})

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        order = ranked(prediction.confidence, block.masked)
        kept = self.keep(prediction.confidence[order])
        kept &= np.arange(len(order)) < (self.config.most or len(order))
        kept[:1] = True
        return marked(block.masked, order[kept])

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit, given their confidence in falling order."""
        raise NotImplementedError
