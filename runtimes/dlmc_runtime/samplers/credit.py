"""Credit decoding: a prediction that persists gains weight."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import BlockState, Bools, Floats, Ints, Prediction, needed
from dlmc_runtime.samplers.ranked import Ranked

DECAY, POWER, WEIGHT = 0.8, 0.2, 0.7


class Credit(Ranked):
    """Commit what is sure, where a token counts for more the longer it has been predicted.

    At each step all credit decays, the best token of every masked position earns its probability
    to the power of `POWER`, and `WEIGHT` * log(1 + credit) is added to its logit. A token that is
    no candidate of the position in a step has no use of its credit in that step.
    """

    source: ClassVar[str] = "inclusionAI/dInfer `python/dinfer/decoding/parallel_strategy.py`"
    needs: ClassVar[frozenset[str]] = frozenset({"candidates"})
    heeds: ClassVar[frozenset[str]] = frozenset({"steps", "threshold", "factor", "defer_ids"})
    defaults: ClassVar[Mapping[str, float]] = {"threshold": 0.9}

    def begin(self) -> None:
        """Forget all credit."""
        self._credit: dict[int, dict[int, float]] = {}  # by position, by token

    def adjust(self, prediction: Prediction, block: BlockState) -> Prediction:
        """Return the prediction with credit, at temperature 0."""
        found = needed(prediction.candidates, "candidates")
        self._earn(found.ids[:, 0], np.exp(found.logprobs[:, 0]), block.masked)
        held = [
            [credit.get(token, 0.0) for token in ids]
            for position, ids in enumerate(found.ids.tolist())
            for credit in (self._credit.get(position, {}),)
        ]
        raised = found.logprobs + WEIGHT * np.log1p(np.array(held))
        # What the candidates gain is all that changes in the sum over the vocabulary.
        total = 1.0 + (np.exp(raised) - np.exp(found.logprobs)).sum(1)
        place = raised.argmax(1)[:, None]
        tokens = np.take_along_axis(found.ids, place, 1)[:, 0]
        confidence = np.exp(np.take_along_axis(raised, place, 1)[:, 0]) / total
        choices = prediction.choices
        if choices is not None:
            scores = raised - np.log(total)[:, None]
            choices = replace(choices, scores=scores, chances=np.exp(scores))
        return replace(prediction, tokens=tokens, confidence=confidence, choices=choices)

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions to commit, bool [n]."""
        if self.config.factor is not None:
            return super().select(prediction, block)
        return self.above(self.option("threshold"), prediction, block)

    def _earn(self, best: Ints, probability: Floats, masked: Bools) -> None:
        for position in np.flatnonzero(masked):
            credit = self._credit.setdefault(int(position), {})
            for token in credit:
                credit[token] *= DECAY
            earned = float(probability[position]) ** POWER
            token = int(best[position])
            credit[token] = credit.get(token, 0.0) + earned

    def idle(self, block: BlockState) -> bool:
        """Return False: every step earns credit."""
        del block
        return False
