"""Nemotron's bound on the error of a whole step."""

import numpy as np

from dlmc_runtime.samplers.base import Bools, Floats
from dlmc_runtime.samplers.by_rank import ByRank

_LEAST = 1e-12


class CumulativeError(ByRank):
    """Commit the prefix whose confidences multiply to at least the threshold."""

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        together = np.cumsum(np.log(np.maximum(confidence, _LEAST)))
        kept: Bools = together >= np.log(max(self.option("threshold"), _LEAST))
        return kept
