"""WINO: decode wide in, verify, and revoke narrow out."""

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
    Sampler,
    best,
    marked,
    needed,
    ranked,
)

_SHARE, _FEWEST, _MOST = 0.7, 5, 20
_FIRST = 30  # what the first step may revoke up to; there is nothing to revoke then


class Wino(Sampler):
    """Commit freely, and take back what the rest of the text does not bear out.

    The block is fed twice: the second time as masks, each of which sees all but its own token. A
    committed token whose probability there is below ``revoke_threshold`` becomes a mask again, but
    fewer of them than the step before committed, and none where this one commits a single token. A
    token that is no candidate there counts as improbable. The reference may also revoke tokens
    that a block was given; here those stay.
    """

    source: ClassVar[str] = "Feng-Hong/WINO-DLLM `LLaDA/decoding.py`, arXiv 2507.18578"
    revises: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"shadow"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "revoke_threshold"})
    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.6, "revoke_threshold": 0.9}

    def begin(self) -> None:
        """Forget how many were committed."""
        self._last = _FIRST

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        sure = block.masked & (prediction.confidence > self.option("threshold"))
        most = min(max(int(int(block.masked.sum()) * _SHARE), _FEWEST), _MOST)
        if sure.sum() > most:
            return best(prediction.confidence, block.masked, most)
        return sure if sure.any() else best(prediction.confidence, block.masked, 1)

    def reopen(self, prediction: Prediction, block: BlockState, chosen: Bools) -> Bools:
        """Return the positions that become masks again, bool [n]."""
        shadow = needed(prediction.shadow, "a shadow of the block")
        tokens = needed(block.tokens, "the block's tokens")
        given = needed(block.given, "the positions that were given")
        last, self._last = self._last, int(chosen.sum())
        if self._last <= 1:
            return np.zeros_like(chosen)
        probability = probability_of(tokens, shadow)
        improbable = probability < self.option("revoke_threshold")
        doubted: Bools = ~block.masked & ~given & improbable
        if doubted.sum() < last:
            return doubted
        return marked(doubted, ranked(-probability, doubted)[: last - 1])


def probability_of(tokens: Ints, candidates: Candidates) -> Floats:
    """Return the probability of one token a position, float64 [n]; 0 if it is no candidate."""
    same = candidates.ids == tokens[:, None]
    probability: Floats = np.where(same, np.exp(candidates.logprobs), 0.0).sum(1)
    return probability
