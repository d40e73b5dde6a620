"""The samplers of NVIDIA's evaluation harness for Nemotron.

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
from dlmc_runtime.samplers.ranked import factor_bounds

_LEAST = 1e-12


class _ByRank(Sampler):
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


class Fixed(_ByRank):
    """Commit the ``most`` best positions as far as they pass the threshold."""

    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9, "most": 1}

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        among = np.arange(len(confidence)) < self.option("most")
        return among & (confidence >= self.option("threshold"))


class Reference(_ByRank):
    """Commit the longest prefix that passes both the threshold and 1 - factor / (rank + 1)."""

    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "factor", "most"})
    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9, "factor": 1.0}

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        bounds = factor_bounds(len(confidence), self.option("factor"))
        # Confidence falls and bounds rise, so that what passes is a prefix.
        kept: Bools = confidence >= np.maximum(bounds, self.option("threshold"))
        return kept


class Bound(_ByRank):
    """Commit what passes the threshold, or both ``min_threshold`` and 1 - factor / (rank + 1)."""

    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "threshold", "factor", "min_threshold", "most"}
    )
    defaults: ClassVar[Mapping[str, float]] = {
        "threshold": 0.9,
        "factor": 2.0,
        "min_threshold": 0.45,
    }

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        bounds = factor_bounds(len(confidence), self.option("factor"))
        loose = confidence >= np.maximum(bounds, self.option("min_threshold"))
        kept: Bools = (confidence >= self.option("threshold")) | loose
        return kept


class CumulativeError(_ByRank):
    """Commit the prefix whose confidences multiply to at least the threshold."""

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        together = np.cumsum(np.log(np.maximum(confidence, _LEAST)))
        kept: Bools = together >= np.log(max(self.option("threshold"), _LEAST))
        return kept
