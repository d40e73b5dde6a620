"""ReMDM: the reverse process of masked diffusion, with remasking."""

from collections.abc import Mapping
from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler, needed


class Remdm(Sampler):
    """Commit masks and reopen committed positions by chance, as the process from t to s says.

    The paper's ReMDM-cap with alpha(t) = 1 - t: a known position becomes a mask with probability
    sigma = min(eta, (1 - alpha(s)) / alpha(t)), a mask becomes known with probability
    (alpha(s) - (1 - sigma) alpha(t)) / (1 - alpha(t)). The last step leaves no mask.
    """

    source: ClassVar[str] = "kuleshov-group/remdm `diffusion.py`, arXiv 2503.00307"
    revises: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"noise"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "eta"})
    defaults: ClassVar[Mapping[str, float]] = {"eta": 0.04}

    def _process(self, block: BlockState) -> tuple[float, float]:
        """Return sigma, and the probability that a mask becomes known."""
        steps = self.config.steps or len(block.masked)
        now, then = min(block.step / steps, 1.0), min((block.step + 1) / steps, 1.0)  # alphas
        sigma = min(self.option("eta"), (1 - then) / now) if now else 0.0
        return sigma, 1.0 if then == 1 else (then - (1 - sigma) * now) / (1 - now)

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        return block.masked & (needed(prediction.noise, "noise") < self._process(block)[1])

    def reopen(self, prediction: Prediction, block: BlockState, chosen: Bools) -> Bools:
        """Return the positions that become masks again, bool [n]."""
        del chosen
        known = ~block.masked & ~needed(block.given, "the positions that were given")
        reopened: Bools = known & (needed(prediction.noise, "noise") < self._process(block)[0])
        return reopened
