"""The entropy-bounded sampler (EB, arXiv 2505.24857)."""

from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Prediction,
    Sampler,
    marked,
    needed,
    ranked,
)

DEFAULT_GAMMA = 0.35


class EntropyBounded(Sampler):
    """Commit in order of entropy while the entropies of those before add up to at most ``gamma``.

    SDAR's reference names this strategy ``entropy_bounded`` (JetAstra/SDAR, whose own code of it
    ends in an undefined name); the rule here is the paper's, as SGLang runs it.
    """

    tempered: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "gamma"})

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]; always the one of least entropy."""
        entropy = needed(prediction.entropy)
        order = ranked(-entropy, block.masked)
        before = np.concatenate(([0.0], np.cumsum(entropy[order])[:-1]))
        gamma = DEFAULT_GAMMA if self.config.gamma is None else self.config.gamma
        allowed = before <= gamma
        allowed[:1] = True
        return marked(block.masked, order[allowed])
