"""Nemotron's threshold and positional bound, both to be passed."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import Bools, Floats
from dlmc_runtime.samplers.by_rank import ByRank
from dlmc_runtime.samplers.ranked import factor_bounds


class ConfidenceThresholdRef(ByRank):
    """Commit the longest prefix that passes both the threshold and 1 - factor / (rank + 1)."""

    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "factor", "most"})
    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9, "factor": 1.0}

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        bounds = factor_bounds(len(confidence), self.option("factor"))
        # Confidence falls and bounds rise, so that what passes is a prefix.
        kept: Bools = confidence >= np.maximum(bounds, self.option("threshold"))
        return kept
