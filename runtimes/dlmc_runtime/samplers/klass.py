"""KLASS: stable predictions are safe to commit."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Candidates,
    Floats,
    Ints,
    Prediction,
    best,
    needed,
)
from dlmc_runtime.samplers.ranked import Ranked

HISTORY = 2  # comparisons of a position with its last step


class Klass(Ranked):
    """Commit what is sure and has kept still for two steps, else what the schedule says.

    The divergence between a position's distributions in successive steps is taken over the
    candidates that both steps keep, and all other tokens as one: never more than over the whole
    vocabulary, and equal to it where every token is a candidate. Where nothing is ready, at least
    one position is committed.

    The reference compares with a distribution of zeros at its very first step, which makes nothing
    ready; here that is the rule in every block, since a block's positions are not read before.
    (Its ``entropy`` order picks the least certain positions, and its confidence at a temperature
    is taken from noised logits; neither is followed.)
    """

    source: ClassVar[str] = "shkim0116/KLASS `src/model/llada_klass.py`, arXiv 2511.05664"
    needs: ClassVar[frozenset[str]] = frozenset({"candidates"})
    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "threshold", "kl_threshold", "schedule", "eps", "defer_ids"}
    )
    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9, "kl_threshold": 0.01}

    def begin(self) -> None:
        """Forget the distributions."""
        self._before: Candidates | None = None
        self._calm: Ints = np.zeros((), np.int64)  # as many as positions, once there are any

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        now = needed(prediction.candidates, "candidates")
        if self._before is not None:
            calm = divergence(now, self._before) < self.option("kl_threshold")
            self._calm = np.where(calm, self._calm + 1, 0)
        self._before = now
        scores = self.deferred(prediction.confidence, prediction)
        sure = scores > self.option("threshold")
        ready: Bools = block.masked & sure & (self._calm >= HISTORY)
        if ready.any():
            return ready
        return best(scores, block.masked, max(self.count(block), 1))

    def idle(self, block: BlockState) -> bool:
        """Return False: every step is compared with the one before."""
        del block
        return False


def divergence(now: Candidates, before: Candidates) -> Floats:
    """Return KL(now || before) of each position, float64 [n], in nats.

    Tokens that are not candidates in both are taken together as one.
    """
    same = now.ids[:, :, None] == before.ids[:, None, :]
    shared = same.any(2)
    place = same.argmax(2)
    old = np.take_along_axis(before.logprobs, place, 1)
    p = np.where(shared, np.exp(now.logprobs), 0.0)
    q = np.where(shared, np.exp(old), 0.0)
    terms = np.where(shared, p * (now.logprobs - old), 0.0).sum(1)
    rest = np.clip(1.0 - p.sum(1), 0.0, None), np.clip(1.0 - q.sum(1), 0.0, None)
    tiny = np.finfo(np.float64).eps
    together: Floats = terms + np.where(
        rest[0] > tiny, rest[0] * np.log(np.maximum(rest[0], tiny) / np.maximum(rest[1], tiny)), 0.0
    )
    return together
