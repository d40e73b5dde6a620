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

    SDAR's reference names this strategy ``entropy_bounded``, and takes 0.35 for ``gamma``; its own
    code of it ends in an undefined name. The rule here is the paper's, as SGLang runs it.
    """

    source: ClassVar[str] = "arXiv 2505.24857"
    tempered: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "gamma"})
    defaults: ClassVar[Mapping[str, float]] = {"gamma": 0.35}

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]; always the one of least entropy."""
        entropy = needed(prediction.entropy, "entropies")
        return within(entropy, block.masked, self.option("gamma"))


def within(entropy: Floats, masked: Bools, bound: float) -> Bools:
    """Mark masked positions in order of entropy while those before add up to at most ``bound``.

    Args:
        entropy: float64 [n], in nats.
        masked: bool [n].
        bound: in nats.

    Returns:
        bool [n]; the position of least entropy is always in it.
    """
    order = ranked(-entropy, masked)
    before = np.concatenate(([0.0], np.cumsum(entropy[order])[:-1]))
    allowed = before <= bound
    allowed[:1] = True
    return marked(masked, order[allowed])
