"""Models whose finished blocks never change: an exact cache, written block by block."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.masks import Own
from dlmc_runtime.regimes.base import Regime, causal_piece_end
from dlmc_runtime.samplers.base import Prediction
from dlmc_runtime.task import Task

if TYPE_CHECKING:
    from dlmc_runtime.row import Row

# How the positions of a stored forward see one another.
_STORED: dict[str, Own] = {"block": "blocks", "context": "causal"}


class Exact(Regime):
    """Prefills the prompt's whole blocks, then denoises and commits one block after another.

    The last stored position speaks about the position after it, the first of the next block:
    where the model is ``seeded`` its best token is put there at once; where logits predict the
    next position, its prediction competes with those of the block.

    A block may be filled by sub-blocks. With the cache ``dual`` (Fast-dLLM v2) a forward of the
    whole block leaves its keys and values behind the committed ones, and the next forwards of the
    sub-block feed only that, as long as its first position is known.

    A sampler that replaces tokens goes on without masks. A block whose last forward saw its final
    tokens needs no other one to be stored, where that would be the same.
    """

    def __init__(self, row: "Row") -> None:
        super().__init__(row)
        config = row.request.sampler
        self.block = (0, 0)
        self.sub_block = config.sub_block_length or row.blocks.length
        self.dual, self.left_behind = config.cache == "dual", False
        length = row.prompt_length
        self.prefix_end = row.blocks.start_of(length) if length < row.blocks.end else length
        self.stored = _STORED[row.attention.regime]
        self.tells = row.attention.seeded or row.shift == 1
        self.may_end_stored = row.sampler.rewrites and self.stored == "blocks" and not self.tells

    @property
    def cache_needed(self) -> int:
        """What is committed when the last block is denoised, and that block if it is kept."""
        row = self.row
        last = row.blocks.start_of(row.blocks.end - 1)
        return row.blocks.end if row.request.keep_cache or self.dual else last

    @property
    def block_needed(self) -> int:
        """A block."""
        return self.row.blocks.length

    @property
    def head_needed(self) -> int:
        """A block."""
        return self.row.blocks.length

    @property
    def prompt_end(self) -> int:
        """Where the prompt's whole blocks end."""
        return self.prefix_end

    def piece_end(self, position: int) -> int | None:
        """Return where a block ends, or where a causal piece does."""
        if self.stored == "causal":
            return causal_piece_end(position)
        return self.row.blocks.end_of(position)

    def begin(self) -> None:
        """Enter the first block, if there is nothing to prefill."""
        if not self.prefix_end:
            self._enter(0)

    def _enter(self, start: int) -> None:
        row = self.row
        self.block = (start, row.blocks.end_of(start))
        self._next_window(start)

    def _next_window(self, start: int) -> None:
        """Enter the next sub-block that holds a mask; stay in the last one where none does."""
        row, end = self.row, self.block[1]
        self.left_behind = False
        while True:
            stop = min(start + self.sub_block, end)
            row.enter(start, stop)
            if row.open or stop == end:
                break
            start = stop
        self.skip_idle()

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do; a prefill feeds at most ``chunk`` positions."""
        row = self.row
        if row.cached < self.prefix_end:
            return self._prefill(chunk)
        start, end = self.block
        full = not row.masked[start:end].any()
        if full and not row.open:
            return self._store("commit", start, end)
        task = Task("denoise", start, end, row.start, row.end, visible=start, shift=row.shift)
        if full and self.may_end_stored and end <= self.cache_needed:
            return replace(task, at=start, kept=end - start)
        if not self.dual:
            return task
        if not self.left_behind or row.masked[row.start]:
            return replace(task, at=start, kept=end - start)
        hole = (row.start, row.end)
        return replace(task, start=row.start, end=row.end, visible=end, hole=hole)

    def temperature(self, task: Task) -> float:
        """Return the temperature at which the tokens that a forward reads are drawn.

        A model with a causal pass draws the token it seeds a block with (Nemotron), one whose
        logits predict the next position takes the best (Fast-dLLM v2). Where what is stored tells
        about the next block's first position, its token is drawn once, with the store.
        """
        greedy = self.row.attention.seeded and self.row.attention.regime == "block"
        # However many parts a prompt comes in, only the last of them tells about a block.
        last = task.kind == "commit" or task.end == self.prefix_end
        if self.tells and last and not greedy:
            return self.row.request.sampler.temperature
        return super().temperature(task)

    def _prefill(self, chunk: int) -> Task:
        row, end = self.row, self.row.cached + chunk
        if self.stored == "blocks":  # whole blocks only
            end = row.blocks.start_of(end)
            if end <= row.cached:
                end = row.blocks.end_of(row.cached)
        return self._store("prefill", row.cached, min(end, self.prefix_end))

    def _store(self, kind: str, start: int, end: int) -> Task:
        """Return a forward that keeps what it feeds, and reads what the last of it says."""
        return Task(
            "commit" if kind == "commit" else "prefill",
            start,
            end,
            end if self.tells else end - 1,
            end + 1 if self.tells else end,
            own=self.stored,
            visible=start,
            shift=1 if self.tells else 0,
            at=start,
            kept=end - start,
        )

    def done(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        """Take note of a forward."""
        if task.kind != "denoise":
            self._committed(task, prediction, said)
            return
        fed = self.row.canvas[task.start : task.end].copy()
        self._denoised(task, prediction)
        done = not (self.row.finished or self.row.open)
        if done and self.may_end_stored and task.kept and self._holds(task, fed):
            self._committed(task, prediction, said)

    def _holds(self, task: Task, fed: NDArray[np.int64]) -> bool:
        """Return whether a block still holds what was fed."""
        return bool((self.row.canvas[task.start : task.end] == fed).all())

    def _denoised(self, task: Task, prediction: Prediction) -> None:
        row = self.row
        self.left_behind |= bool(task.kept)
        row.decide(prediction)
        start, end = self.block
        full = not (row.open or row.masked[start:end].any())
        if full and row.sampler.revises:
            row.firm = end
        row.look_for_end()
        if row.finished:
            return
        if row.open:
            self.skip_idle()
        elif not full:
            self._next_window(row.end)
        elif not row.request.keep_cache and (row.ending is not None or end >= row.answer_end):
            row.finished = True

    def _committed(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        row = self.row
        row.cached = task.end
        if self.tells and not row.attention.seeded:
            row.edge = said.copy()
        if row.cached < self.prefix_end:
            return
        ended = row.ending is not None or task.end >= row.answer_end
        if task.kind != "prefill" and ended:
            row.finished = True
            return
        if row.attention.seeded:
            drawn = row.attention.regime == "context"
            if not drawn:
                prediction = replace(prediction, tokens=said.top_ids[:, 0])
            row.plant(task.end, int(row.guided(prediction, task.end).tokens[0]))
        self._enter(task.end)
        row.look_for_end()
        if row.known >= row.answer_end:
            row.finished = True
