"""ReMDM: the reverse process of masked diffusion, with remasking (arXiv 2503.00307)."""

from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler, needed

DEFAULT_ETA = 0.04


class Remdm(Sampler):
    """Commit masks and reopen committed positions by chance, as the process from t to s says.

    The paper's ReMDM-cap with alpha(t) = 1 - t: a known position becomes a mask with probability
    sigma = min(eta, (1 - alpha(s)) / alpha(t)), a mask becomes known with probability
    (alpha(s) - (1 - sigma) alpha(t)) / (1 - alpha(t)). The last step leaves no mask.
    """

    revises: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"noise"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "eta"})

    def _process(self, block: BlockState) -> tuple[float, float]:
        """Return sigma, and the probability that a mask becomes known."""
        steps = self.config.steps or len(block.masked)
        now, then = min(block.step / steps, 1.0), min((block.step + 1) / steps, 1.0)  # alphas
        eta = DEFAULT_ETA if self.config.eta is None else self.config.eta
        sigma = min(eta, (1 - then) / now) if now else 0.0
        return sigma, 1.0 if then == 1 else (then - (1 - sigma) * now) / (1 - now)

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        return block.masked & (needed(prediction.noise) < self._process(block)[1])

    def reopen(self, prediction: Prediction, block: BlockState, chosen: Bools) -> Bools:
        """Return the positions that become masks again, bool [n]."""
        del chosen
        known = ~block.masked if block.given is None else ~block.masked & ~block.given
        reopened: Bools = known & (needed(prediction.noise) < self._process(block)[0])
        return reopened
