"""The samplers of NVIDIA's evaluation harness for Nemotron, as Blaizzy/mlx-vlm runs them.

All rank masked positions by confidence and always commit the best one. (The released sampler,
``native``, is `low_confidence` with a threshold.)
"""

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

DEFAULT_THRESHOLD, DEFAULT_FACTOR, DEFAULT_MINIMUM, DEFAULT_MOST = 0.9, 1.0, 0.5, 1
_LEAST = 1e-12


class _ByRank(Sampler):
    """Commits those of the ranked positions that a rule keeps."""

    tempered: ClassVar[bool] = True
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "most"})

    @property
    def threshold(self) -> float:
        """The threshold, or its default."""
        return DEFAULT_THRESHOLD if self.config.threshold is None else self.config.threshold

    @property
    def factor(self) -> float:
        """The factor of the positional bound, or its default."""
        return DEFAULT_FACTOR if self.config.factor is None else self.config.factor

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

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        most = self.config.most or DEFAULT_MOST
        return (np.arange(len(confidence)) < most) & (confidence >= self.threshold)


class Reference(_ByRank):
    """Commit the longest prefix that passes both the threshold and 1 - factor / (rank + 2)."""

    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "factor", "most"})

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        passed = (confidence >= self.threshold) & (
            confidence >= factor_bounds(len(confidence), self.factor)
        )
        kept: Bools = np.logical_and.accumulate(passed)
        return kept


class Bound(_ByRank):
    """Commit what passes the threshold, or both ``min_threshold`` and 1 - factor / (rank + 2)."""

    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "threshold", "factor", "min_threshold", "most"}
    )

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        least = self.config.min_threshold
        bounds = factor_bounds(len(confidence), self.factor)
        loose = confidence >= np.maximum(bounds, DEFAULT_MINIMUM if least is None else least)
        kept: Bools = (confidence >= self.threshold) | loose
        return kept


class CumulativeError(_ByRank):
    """Commit the prefix whose confidences multiply to at least the threshold."""

    def keep(self, confidence: Floats) -> Bools:
        """Return which ranks to commit."""
        together = np.cumsum(np.log(np.maximum(confidence, _LEAST)))
        kept: Bools = together >= np.log(max(self.threshold, _LEAST))
        return kept
