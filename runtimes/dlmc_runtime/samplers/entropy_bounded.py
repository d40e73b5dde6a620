"""The entropy-bounded sampler (EB)."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Floats,
    Prediction,
    Sampler,
    marked,
    needed,
    ranked,
)


class EntropyBounded(Sampler):
    """Commit in order of entropy while the entropies of those before add up to at most ``gamma``.

    With ``order`` confidence the most confident come first, and of those taken the largest entropy
    is left out of the sum: RND1's rule, which in order of entropy is the same one.

    SDAR's reference names this strategy ``entropy_bounded``, and takes 0.35 for ``gamma``; its own
    code of it ends in an undefined name. The rule here is the paper's, as SGLang runs it.
    """

    source: ClassVar[str] = (
        "arXiv 2505.24857; by confidence: RadicalNumerics/RND1 `rnd/sampling.py`, `eb_gamma`"
    )
    tempered: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "gamma", "order"})
    order: ClassVar[str] = "entropy"
    defaults: ClassVar[Mapping[str, float]] = {"gamma": 0.35}

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]; always the first one."""
        entropy = needed(prediction.entropy, "entropies")
        by_confidence = (self.config.order or self.order) == "confidence"
        order = ranked(prediction.confidence if by_confidence else -entropy, block.masked)
        return marked(block.masked, order[: self._affordable(entropy[order])])

    def _affordable(self, entropy: Floats) -> int:
        """Return how many may be taken: without the largest their sum is at most ``gamma``."""
        largest = np.concatenate(([0.0], np.maximum.accumulate(entropy)[:-1]))
        rest = np.cumsum(np.minimum(entropy, largest))
        return max(int((rest <= self.option("gamma")).sum()), 1)
