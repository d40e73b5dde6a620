"""Nemotron's threshold and positional bound, either to be passed."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import Bools, Floats
from dlmc_runtime.samplers.by_rank import ByRank
from dlmc_runtime.samplers.ranked import factor_bounds


class ConfidenceThresholdBound(ByRank):
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
