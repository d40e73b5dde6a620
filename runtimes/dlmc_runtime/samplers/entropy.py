"""Dream's order by entropy."""

from typing import ClassVar

from dlmc_runtime.samplers.base import Floats, Prediction, needed
from dlmc_runtime.samplers.maskgit_plus import DREAM, MaskgitPlus


class Entropy(MaskgitPlus):
    """Commit first where the distribution has the least entropy."""

    source: ClassVar[str] = DREAM
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    def scores(self, prediction: Prediction) -> Floats:
        """Return minus the entropies, float64 [n]."""
        return -needed(prediction.entropy, "entropies")
