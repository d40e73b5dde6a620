"""One request in flight: its canvas, and what the next forward must do for it."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime import samplers
from dlmc_runtime.manifest import Manifest
from dlmc_runtime.samplers.base import BlockState, Prediction
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import Ending, StopRule


class Uniforms(Protocol):
    """Where a row's random numbers come from; `numpy.random.Generator` is one."""

    def random(self, size: int) -> NDArray[np.float64]:
        """Return float64 [size] in [0, 1)."""
        ...


@dataclass(frozen=True)
class Request:
    """What one row asks for.

    Attributes:
        prompt: token ids.
        max_new_tokens: most tokens to generate.
        sampler: the row's sampler.
        seed: seeds every random number of the row.
        stop: what ends the row early.
        keep_cache: finish and commit the last block as well, so that its cache can be reused.
            The reference implementations always do; without it a row stops as soon as its text
            is known.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampler: SamplerConfig
    seed: int = 0
    stop: StopRule = field(default_factory=StopRule)
    keep_cache: bool = False


@dataclass(frozen=True)
class Task:
    """What a row needs from the next forward: positions ``start`` to ``end`` are fed.

    ``prefill`` and ``commit`` store their keys and values; ``denoise`` asks the head about
    positions ``head_start`` to ``head_end``.
    """

    kind: Literal["prefill", "denoise", "commit"]
    start: int
    end: int
    head_start: int
    head_end: int


class Row:
    """The state machine of a request: prefill, then per block denoise until full, then commit."""

    def __init__(
        self, request: Request, manifest: Manifest, uniforms: Uniforms | None = None
    ) -> None:
        self.request = request
        self.regime = manifest.attention.regime
        self.cached_regime = self.regime != "full"
        self.sampler = samplers.build(request.sampler)
        self.uniforms = np.random.default_rng(request.seed) if uniforms is None else uniforms
        self.block_length = request.sampler.block_length or manifest.attention.block_length
        self.prompt_length = len(request.prompt)
        self.answer_end = self.prompt_length + request.max_new_tokens
        length = self.answer_end
        if self.cached_regime:
            length = -(-length // self.block_length) * self.block_length
        self.canvas = np.full(length, manifest.tokens.mask, np.int64)
        self.canvas[: self.prompt_length] = request.prompt
        self.masked = np.ones(length, np.bool_)
        self.masked[: self.prompt_length] = False
        self.cached = 0
        self.forwards = 0
        self.known = self.prompt_length  # everything before it is final
        self.ending: Ending | None = None
        self.finished = False
        blocks = self.prompt_length // self.block_length
        self.prefix_end = blocks * self.block_length if self.cached_regime else 0
        self._enter(self.prefix_end if self.cached_regime else self.prompt_length)

    def _enter(self, start: int) -> None:
        self.start, self.end = start, min(start + self.block_length, len(self.canvas))
        self.step = 0
        self.masks = int(self.masked[start : self.end].sum())

    @property
    def cache_needed(self) -> int:
        """Positions this row will have committed when its last block is denoised."""
        if not self.cached_regime:
            return 0
        return len(self.canvas) - (0 if self.request.keep_cache else self.block_length)

    @property
    def block_needed(self) -> int:
        """Positions a denoising forward of this row feeds."""
        return self.block_length if self.cached_regime else len(self.canvas)

    @property
    def head_needed(self) -> int:
        """Positions that a denoising forward of this row asks the head about."""
        if self.cached_regime:
            return self.block_length
        return min(self.block_length, self.request.max_new_tokens)

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do; a prefill feeds at most ``chunk`` positions."""
        if self.cached < self.prefix_end:
            whole = max(chunk // self.block_length, 1) * self.block_length
            end = min(self.cached + whole, self.prefix_end)
            return Task("prefill", self.cached, end, end - 1, end)
        if not self.masked[self.start : self.end].any():
            return Task("commit", self.start, self.end, self.start, self.end)
        begin, end = (self.start, self.end) if self.cached_regime else (0, len(self.canvas))
        return Task("denoise", begin, end, self.start, self.end)

    def draw(self, count: int) -> NDArray[np.float32]:
        """Return float32 [count] uniform numbers for the head."""
        # Rounding to float32 must not reach 1, which no inverse distribution is defined at.
        below_one = np.nextafter(np.float32(1), np.float32(0))
        return np.minimum(self.uniforms.random(count).astype(np.float32), below_one)

    def stored(self, task: Task) -> None:
        """Take note that a prefill or commit has been written to the cache."""
        self.forwards += 1
        self.cached = task.end
        if task.kind == "commit":
            self._next_block()

    def denoised(self, prediction: Prediction) -> None:
        """Fix the positions the sampler chooses and move on where the block is full."""
        self.forwards += 1
        window = slice(self.start, self.end)
        state = BlockState(self.masked[window].copy(), self.step, self.masks)
        chosen = self.sampler.select(prediction, state)
        self.canvas[window][chosen] = prediction.tokens[chosen]
        self.masked[window][chosen] = False
        self.step += 1
        self._look_for_end()
        if self.finished or self.masked[window].any():
            return
        if not self.cached_regime:
            self._next_block()

    def _look_for_end(self) -> None:
        """Extend the final prefix, and end the row where a stop rule or its length says so."""
        open_positions = np.flatnonzero(self.masked[self.known :])
        known = self.known + int(open_positions[0]) if len(open_positions) else len(self.canvas)
        if known == self.known:
            return
        self.known = known
        if self.ending is None:
            self.ending = self.request.stop.find(self.answer())
        done = self.ending is not None or known >= self.answer_end
        if done and not self.request.keep_cache:
            self.finished = True

    def _next_block(self) -> None:
        if self.end >= self.answer_end or self.ending is not None:
            self.finished = True
        else:
            self._enter(self.end)

    def answer(self) -> list[int]:
        """Return the generated ids that are final, stop ids included, at most max_new_tokens."""
        ids: list[int] = self.canvas[self.prompt_length : min(self.known, self.answer_end)].tolist()
        return ids
