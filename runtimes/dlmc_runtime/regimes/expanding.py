"""Spans that grow and shrink while they are filled (DreamOn, arXiv 2602.01326)."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.regimes.base import Regime
from dlmc_runtime.samplers.base import Prediction, best
from dlmc_runtime.samplers.ranked import Ranked
from dlmc_runtime.task import Task

if TYPE_CHECKING:
    from dlmc_runtime.row import Row


class Expanding(Regime):
    """Fills one position a forward; some predictions change the length of a span.

    The expand token becomes two masks, as long as the spans hold fewer than `max_new_tokens`
    tokens and no more than twice as many expansions were made; the delete token takes its position
    away.
    """

    def __init__(self, row: "Row") -> None:
        super().__init__(row)
        self.room = max(row.request.max_new_tokens, int(row.masked.sum()))
        self.budget = 2 * self.room

    @property
    def cache_needed(self) -> int:
        """None is kept."""
        return 0

    @property
    def block_needed(self) -> int:
        """What is given, and the spans as long as they may get."""
        return int(self.row.given.sum()) + self.room

    @property
    def head_needed(self) -> int:
        """From the first span to the last."""
        return self.block_needed

    def begin(self) -> None:
        """Enter the spans."""
        self._enter()

    def _enter(self) -> None:
        row = self.row
        open_positions = np.flatnonzero(row.masked)
        if not len(open_positions):
            row.finished = True
            row.look_for_end()
            return
        row.enter(int(open_positions[0]), int(open_positions[-1]) + 1)
        row.look_for_end()

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do: everything is fed."""
        del chunk
        row = self.row
        return Task("denoise", 0, len(row.canvas), row.start, row.end, shift=row.shift)

    def done(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        """Fix the best position, and change the span where its token says so."""
        del task
        row = self.row
        if self.budget <= 0 or int((~row.given).sum()) >= self.room:
            prediction = self._without_expansion(prediction, said)
        block = row.state()
        scores = row.sampler.scores(prediction) if isinstance(row.sampler, Ranked) else None
        if scores is None:
            scores = prediction.confidence
        chosen = best(scores, block.masked, 1)
        row.fix(chosen, prediction)
        position = row.start + int(np.argmax(chosen))
        token = int(row.canvas[position])
        if token == row.tokens.expand:
            self.budget -= 1
            row.splice(position, 2)
        elif token == row.tokens.delete:
            row.splice(position, 0)
        self._enter()

    def _without_expansion(self, prediction: Prediction, said: Outputs) -> Prediction:
        """Take the next best token where it would be the expand token."""
        expands = prediction.tokens == self.row.tokens.expand
        if not expands.any():
            return prediction
        allowed = said.top_ids != self.row.tokens.expand
        second = allowed.argmax(axis=1)[:, None]
        if not allowed.any(axis=1).all():  # `legal` asks for two candidates
            raise ValueError("a position has no candidate but the expand token")
        tokens = np.take_along_axis(said.top_ids, second, 1)[:, 0]
        logits = np.take_along_axis(said.top_logits, second, 1)[:, 0].astype(np.float64)
        confidence = np.exp(logits - said.logsumexp)
        return replace(
            prediction,
            tokens=np.where(expands, tokens, prediction.tokens),
            confidence=np.where(expands, confidence, prediction.confidence),
        )
