"""Models that see the whole sequence, with and without an approximate cache."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.regimes.base import Regime
from dlmc_runtime.samplers.base import Prediction
from dlmc_runtime.task import Task

if TYPE_CHECKING:
    from dlmc_runtime.row import Row


class Whole(Regime):
    """Denoises block after block, and sees the whole canvas.

    Without a cache every forward feeds everything. ``prefix`` and ``dual`` are Fast-dLLM's
    (arXiv 2505.22618): the first forward of a block feeds everything and keeps the keys and values
    of what lies before the block (``prefix``) or of everything (``dual``); the forwards after it
    feed the block and what follows (``prefix``), or the block alone (``dual``). That first forward
    is a step like any other, but for a model whose logits predict the next position: the logits of
    the position before the block are only there in it, so it commits the block's first position
    and nothing else.
    """

    def __init__(self, row: "Row") -> None:
        super().__init__(row)
        self.cache = row.request.sampler.cache or "none"
        self.fresh = False

    @property
    def cache_needed(self) -> int:
        """The whole canvas where a cache is kept."""
        return 0 if self.cache == "none" else len(self.row.canvas)

    @property
    def block_needed(self) -> int:
        """The whole canvas."""
        return len(self.row.canvas)

    @property
    def head_needed(self) -> int:
        """A block, or what is left of the canvas."""
        return min(self.row.blocks.length, self.row.answer_end - self.row.answer_start)

    def begin(self) -> None:
        """Enter the first block that holds a mask."""
        self._enter(self.row.answer_start)

    def _enter(self, position: int) -> None:
        """Enter the first block from ``position`` on that holds a mask."""
        row = self.row
        ahead = np.flatnonzero(row.masked[position:])
        if not len(ahead):
            row.finished = True
            return
        first = position + int(ahead[0])
        row.enter(row.blocks.start_of(first), row.blocks.end_of(first))
        self.fresh = False
        self.skip_idle()

    def skip_idle(self) -> None:
        """Leave out idle steps; a forward that commits a block's first position is none."""
        if self.cache == "none" or self.fresh or not self.row.shift:
            super().skip_idle()

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do."""
        del chunk
        row, length = self.row, len(self.row.canvas)
        all_of_it = Task("denoise", 0, length, row.start, row.end, shift=row.shift)
        if self.cache == "none":
            return all_of_it
        if not self.fresh:
            kept = row.start if self.cache == "prefix" else length
            return replace(all_of_it, kind="refresh", kept=kept)
        if self.cache == "prefix":
            return replace(all_of_it, start=row.start, visible=row.start)
        return replace(
            all_of_it, start=row.start, end=row.end, visible=length, hole=(row.start, row.end)
        )

    def done(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        """Let the sampler decide, and move on where the block is full."""
        del said
        row = self.row
        self.fresh = True
        if task.kind == "refresh" and row.shift and row.masked[row.start]:
            row.fix(np.arange(row.end - row.start) == 0, row.guided(prediction))
        else:
            row.decide(prediction)
        if row.open:
            row.look_for_end()
            self.skip_idle()
            return
        row.firm = row.end if row.sampler.revises else row.firm
        row.look_for_end()
        if row.finished:
            return
        if row.end >= row.answer_end or row.ending is not None:
            row.finished = True
        else:
            self._enter(row.end)


class Shadowed(Whole):
    """Feeds the block a second time, as masks that show what the rest says about it (WINO)."""

    @property
    def block_needed(self) -> int:
        """The whole canvas and a block."""
        return super().block_needed + super().head_needed

    @property
    def head_needed(self) -> int:
        """A block and its shadow."""
        return 2 * super().head_needed

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do."""
        return replace(super().task(chunk), shadow=(self.row.start, self.row.end))
