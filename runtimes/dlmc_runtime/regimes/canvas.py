"""Models of uniform noise: a canvas begins as random tokens, and is final all at once."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.prediction import choices
from dlmc_runtime.regimes.base import Regime, causal_piece_end
from dlmc_runtime.samplers.base import Prediction, needed
from dlmc_runtime.samplers.renoise import Renoise, random_tokens
from dlmc_runtime.task import Kind, Task

if TYPE_CHECKING:
    from dlmc_runtime.row import Row


class Canvas(Regime):
    """Stores the prompt causally, then denoises and stores one canvas after another.

    Every step tells the next one which tokens it expects (self-conditioning). All of a canvas
    counts as masked until it is final; what follows the end of the text in it is padding then, as
    in the reference (transformers, ``models/diffusion_gemma``).
    """

    def __init__(self, row: "Row") -> None:
        super().__init__(row)
        self.sampler = cast("Renoise", row.sampler)  # `choose` sees to it
        self.denoised = 0  # forwards, of all canvases
        self.next_expected: NDArray[np.float32] | None = None

    @property
    def cache_needed(self) -> int:
        """What is stored when the last canvas is denoised, and that canvas if it is kept."""
        blocks = self.row.blocks
        return blocks.end if self.row.request.keep_cache else blocks.start_of(blocks.end - 1)

    @property
    def block_needed(self) -> int:
        """A canvas."""
        return self.row.blocks.length

    @property
    def head_needed(self) -> int:
        """A canvas."""
        return self.row.blocks.length

    @property
    def prompt_end(self) -> int:
        """Where the prompt ends."""
        return self.row.prompt_length

    def piece_end(self, position: int) -> int | None:
        """Return where a causal piece ends."""
        return causal_piece_end(position)

    def begin(self) -> None:
        """Enter the first canvas, if there is nothing to store before it."""
        if not self.row.prompt_length:
            self._enter(0)

    def _enter(self, start: int) -> None:
        """Begin a canvas with random tokens."""
        row = self.row
        row.enter(start, row.blocks.end_of(start))
        uniform = row.uniforms.random(row.end - start)
        row.canvas[start : row.end] = random_tokens(uniform, row.vocab_size)
        self.next_expected = None

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do; a prefill feeds at most ``chunk`` positions."""
        row = self.row
        if row.cached < row.prompt_length:
            return self._store("prefill", row.cached, min(row.cached + chunk, row.prompt_length))
        start, end = row.start, row.end
        if row.open:
            return Task("denoise", start, end, start, end, visible=start)
        return self._store("commit", start, end)

    @staticmethod
    def _store(kind: Kind, start: int, end: int) -> Task:
        """Return a causal forward that keeps what it feeds; what it reads has no use."""
        return Task(
            kind,
            start,
            end,
            end - 1,
            end,
            own="causal",
            visible=start,
            at=start,
            kept=end - start,
        )

    def temperature(self, task: Task) -> float:
        """Return the temperature of a step of the canvas."""
        return self.sampler.temperature(self.row.step) if task.kind == "denoise" else 0.0

    def expected(self, task: Task) -> NDArray[np.float32] | None:
        """Return what the step before expected; None at the first step of a canvas."""
        return self.next_expected if task.kind == "denoise" else None

    def done(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        """Take note of a forward."""
        row = self.row
        if task.kind == "denoise":
            self._step(prediction, said)
            return
        row.cached = task.end
        if task.kind == "commit" and self._ended:
            row.finished = True
        elif row.cached >= row.prompt_length:
            self._enter(row.cached)

    @property
    def _ended(self) -> bool:
        """Whether no canvas follows this one."""
        return self.row.ending is not None or self.row.end >= self.row.answer_end

    def _step(self, prediction: Prediction, said: Outputs) -> None:
        """Decide what the next step sees, or that there is none."""
        row, block = self.row, self.row.state()
        self.denoised += 1
        row.step += 1
        best = said.top_ids[:, 0]
        settled = self.sampler.settled(best, needed(prediction.entropy, "entropies"))
        if settled or row.step >= self.sampler.steps:
            self._finish(prediction, said)
            return
        prediction = row.guided(prediction)
        noise = random_tokens(needed(prediction.noise, "noise"), row.vocab_size)
        kept = self.sampler.select(prediction, block)
        row.canvas[row.start : row.end] = np.where(kept, prediction.tokens, noise)
        expected = said.next_self_conditioning
        self.next_expected = None if expected is None else expected.copy()

    def _finish(self, prediction: Prediction, said: Outputs) -> None:
        """Make the canvas's best tokens final, and the row where the text ends with it."""
        row, window = self.row, slice(self.row.start, self.row.end)
        tokens = said.top_ids[:, 0]
        if row.guide is not None:
            best = choices(said, row.request.sampler, type(self.sampler), row.vocab_size)
            tokens = row.guided(replace(prediction, choices=best, tokens=tokens)).tokens
        ends = np.isin(tokens, list(row.request.stop.ids))
        after_end = np.cumsum(ends) - ends > 0
        row.canvas[window] = np.where(after_end, row.tokens.pad, tokens)
        row.masked[window] = False
        row.look_for_end()
        if self._ended and not row.request.keep_cache:
            row.finished = True

    def tokens_per_forward(self, tokens: int) -> float:
        """Return tokens of final canvases over forwards that denoised one (TPF).

        This is what the reference counts: a last canvas in full, whatever was asked for, with what
        ends the text and without padding.
        """
        del tokens
        row = self.row
        final = row.canvas[row.answer_start : row.known]
        return float((final != row.tokens.pad).sum()) / self.denoised if self.denoised else 0.0
