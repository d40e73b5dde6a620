"""Dream's order by probability, and what its other orders share.

Scores are taken after temperature, then top-p, then top-k. A schedule of `steps` over the whole
answer says how many positions each step commits.

Fast-dLLM's copy of Dream's code ranks by entropy whatever order it is asked for once it decodes in
blocks, and loses the last step of a block where there is one step a block; here every order works
in blocks, and the last step commits all that is left.
"""

from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers import schedules
from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, best, needed
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.ranked import Ranked

DREAM = "DreamLM/Dream `generation_utils.py`, arXiv 2508.15487"


class MaskgitPlus(Ranked):
    """Commit the most probable predictions first.

    With ``alg_temp`` above 0 positions are drawn without replacement, in proportion to
    exp(score / alg_temp), instead of taken in order.
    """

    source: ClassVar[str] = f"{DREAM}; MaskGIT, arXiv 2202.04200"
    tempered: ClassVar[bool] = True
    nucleus_first: ClassVar[bool] = True
    schedule: ClassVar[schedules.Schedule] = "dream"
    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "threshold", "factor", "schedule", "eps", "alg_temp", "defer_ids"}
    )

    @classmethod
    def asks_for(cls, config: SamplerConfig) -> frozenset[str]:
        """Return what it needs: noise as well where positions are drawn."""
        drawn = bool(config.alg_temp) and "alg_temp" in cls.heeds
        return cls.needs | ({"noise"} if drawn else frozenset())

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        if not self.config.alg_temp or self.bounded:
            return super().select(prediction, block)
        # The largest of score + Gumbel noise are such a draw (arXiv 1903.06059).
        uniform = np.clip(needed(prediction.noise, "noise"), np.finfo(float).tiny, None)
        scores = self.scores(prediction) / self.config.alg_temp - np.log(-np.log(uniform))
        return best(self.deferred(scores, prediction), block.masked, self.count(block))
