"""Nemotron's fixed number of commits."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import Bools, Floats
from dlmc_runtime.samplers.by_rank import ByRank


class Fixed(ByRank):
    """Commit the ``most`` best positions as far as they pass the threshold."""

    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9, "most": 1}

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        among = np.arange(len(confidence)) < self.option("most")
        return among & (confidence >= self.option("threshold"))
