"""Dream's order by margin."""

from typing import ClassVar

from dlmc_runtime.samplers.base import Floats, Prediction, needed
from dlmc_runtime.samplers.maskgit_plus import DREAM, MaskgitPlus


class TopkMargin(MaskgitPlus):
    """Commit first where the best token is farthest ahead of the second."""

    source: ClassVar[str] = DREAM
    needs: ClassVar[frozenset[str]] = frozenset({"margin"})

    def scores(self, prediction: Prediction) -> Floats:
        """Return the margins, float64 [n]."""
        return needed(prediction.margin, "margins")
