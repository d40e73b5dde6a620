"""One request in flight: its canvas, what is final of it, and what its sampler decides."""

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime import regimes, samplers
from dlmc_runtime.blocks import Blocks
from dlmc_runtime.constraints.automaton import Automaton
from dlmc_runtime.constraints.guide import Guide
from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.events import TokenLogprob
from dlmc_runtime.logprobs import told
from dlmc_runtime.manifest import Manifest
from dlmc_runtime.prediction import choices
from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Choices,
    EditIds,
    Prediction,
    Rewritten,
    Sampler,
)
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import Ending, StopRule
from dlmc_runtime.task import Task


class Uniforms(Protocol):
    """Where a row's random numbers come from; `numpy.random.Generator` is one."""

    def random(self, size: int) -> NDArray[np.float64]:
        """Return float64 [size] in [0, 1)."""
        ...


@dataclass(frozen=True)
class Request:
    """What one row asks for.

    Attributes:
        prompt: token ids; a template where there are ``holes``.
        max_new_tokens: most tokens to generate.
        sampler: the row's sampler.
        seed: seeds every random number of the row.
        stop: what ends the row early.
        early_exit: stop as soon as the text is known, even inside a block. Without it a block
            that was begun is denoised to its end, as the reference implementations do.
        keep_cache: finish and commit the last block as well, so that its cache can be reused.
        holes: spans of the prompt to fill, each from its first position to one past its last;
            nothing is generated after the prompt then.
        skip_special_tokens: leave special tokens out of the text.
        logprobs: report how probable each token was, with so many alternatives; None reports none.
        constraint: what the text must match.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampler: SamplerConfig
    seed: int = 0
    stop: StopRule = field(default_factory=StopRule)
    early_exit: bool = True
    keep_cache: bool = False
    holes: tuple[tuple[int, int], ...] = ()
    skip_special_tokens: bool = True
    logprobs: int | None = None
    constraint: Automaton | None = None


_NUMBERS = count()


class Row:
    """The state of a request. What its next forward does is its regime's business.

    Attributes:
        number: no other row of this process has it.
        canvas: int64 [L], prompt and answer; the mask id where nothing is decided.
        masked: bool [L], which positions are not decided, whatever they hold.
        given: bool [L], which positions the request gave.
        pinned: bool [L], which positions no sampler may change: given ones and seeds.
        start, end: the window the sampler decides on.
        known: everything before it is final.
        firm: positions from here on may still change although they are not masked.
        cached: positions committed to the cache.
        edge: what the last stored position says about the one after it.
        ending: where the text ends, once that is known.
        forced: whether a block reached its limit of steps and was finished at once.
        editing: whether the sampler may still replace what the window holds.
        edits: the ids with which the model deletes and inserts, where it has them.
        resumed: positions whose cache was made by another row.
        logprobs: by position, what `TokenLogprob` says, where the request asks for it.
        guide: keeps the text to the request's constraint.
    """

    def __init__(
        self, request: Request, manifest: Manifest, uniforms: Uniforms | None = None
    ) -> None:
        self.number = next(_NUMBERS)
        self.request, self.attention = request, manifest.attention
        self.shift, self.tokens = manifest.shift, manifest.tokens
        self.vocab_size = manifest.model.vocab_size
        self.mask_id = manifest.tokens.filler
        self.sampler = samplers.build(request.sampler)
        self.uniforms = np.random.default_rng(request.seed) if uniforms is None else uniforms
        self.prompt_length = len(request.prompt)
        self.holes = list(request.holes)
        # A template is all of it the answer: what is given in it is known from the start.
        self.answer_start = 0 if self.holes else self.prompt_length
        self.answer_end = self.prompt_length + (0 if self.holes else request.max_new_tokens)
        block = request.sampler.block_length or self.attention.block_length
        self.blocks = Blocks.of(self.attention, block, self.answer_start, self.answer_end)
        length = self.blocks.end
        self.canvas = np.full(length, self.mask_id, np.int64)
        self.canvas[: self.prompt_length] = request.prompt
        self.masked = np.arange(length) >= self.prompt_length
        for begin, end in self.holes:
            self.masked[begin:end] = True
            self.canvas[begin:end] = self.mask_id
        self.given = ~self.masked
        self.pinned = self.given.copy()
        self.cached = self.resumed = self.forwards = 0
        self.logprobs: dict[int, TokenLogprob] = {}
        self.known, self.firm = self.answer_start, length
        self.guide: Guide | None = None
        if request.constraint is not None:
            self.guide = Guide(request.constraint, self.answer_start, self.answer_end)
        self.edge: Outputs | None = None
        self.ending: Ending | None = None
        self.finished = self.forced = self.editing = False
        delete, split = self.tokens.delete, self.tokens.split
        self.edits: EditIds | None = None
        if delete is not None and split is not None:
            self.edits = EditIds(self.mask_id, delete, split)
        self.start = self.end = self.step = self.masks = 0
        self.regime = regimes.choose(self)
        self.regime.begin()

    def enter(self, start: int, end: int) -> None:
        """Let the sampler decide on positions ``start`` to ``end`` from now on."""
        self.start, self.end, self.step = start, end, 0
        self.masks = int(self.masked[start:end].sum())
        self.sampler.begin()
        self.editing = self.sampler.rewrites and self.masks > 0
        if self.sampler.revises:
            self.firm = start + int(np.argmin([*self.pinned[start:end], False]))

    @property
    def open(self) -> bool:
        """Whether the window holds masks, or tokens that the sampler may replace."""
        return self.editing or bool(self.masked[self.start : self.end].any())

    @property
    def slots(self) -> int:
        """Rows of the engine's batch that this takes: two where it is guided."""
        return 2 if self.request.sampler.guidance else 1

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do; a prefill feeds at most ``chunk`` positions."""
        return self.regime.task(chunk)

    def unguided(self) -> NDArray[np.int64]:
        """Return the canvas without what the prompt says: the other row of a guided pair."""
        kept = np.isin(self.canvas, self.request.sampler.guidance_keep)
        return np.where(self.given & ~kept, self.mask_id, self.canvas)

    def draw(self, count: int) -> NDArray[np.float32]:
        """Return float32 [count] uniform numbers for the head."""
        # Rounding to float32 must not reach 1, which no inverse distribution is defined at.
        below_one = np.nextafter(np.float32(1), np.float32(0))
        return np.minimum(self.uniforms.random(count).astype(np.float32), below_one)

    def state(self) -> BlockState:
        """Return where the window stands."""
        window = slice(self.start, self.end)
        masked, tokens = self.masked[window].copy(), self.canvas[window].copy()
        return BlockState(masked, self.step, self.masks, tokens, self.pinned[window], self.edits)

    def leading(self, task: Task) -> Outputs | None:
        """Return what the cache's last position said, where a task reads the one after it."""
        reads = task.kind in ("denoise", "refresh") and task.shift
        return self.edge if reads and task.head_start == self.cached else None

    def done(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        """Take note of a forward.

        Args:
            task: what it was for.
            prediction: of the positions that were read.
            said: the head's outputs for them.
        """
        self.forwards += 1
        if self.request.logprobs is None:
            self.regime.done(task, prediction, said)
            return
        read = slice(task.head_start, task.head_end)
        tokens, masked = self.canvas[read].copy(), self.masked[read].copy()
        self.regime.done(task, prediction, said)
        # What a draft said of a token counts no longer once the causal pass has checked it.
        fresh = masked | (self.canvas[read] != tokens) | (task.kind == "verify")
        decided = ~self.masked[read] & fresh
        count = self.request.logprobs
        for offset in np.flatnonzero(decided).tolist():
            position = task.head_start + offset
            token = int(self.canvas[position])
            self.logprobs[position] = told(said, offset, token, self.forwards, count)

    def decide(self, prediction: Prediction) -> None:
        """Fix the positions of the window that the sampler chooses."""
        block = self.state()
        prediction = self.guided(self.sampler.adjust(prediction, block))
        if self.sampler.rewrites:
            self.write(self.sampler.rewrite(prediction, block))
            return
        chosen = self.sampler.select(prediction, block)
        reopened = self.sampler.reopen(prediction, block, chosen)
        steps = self.request.sampler.steps
        if steps is not None and self.sampler.limited and self.step + 1 >= steps:
            rest = block.masked & ~chosen
            self.forced |= bool(rest.any())
            chosen, reopened = chosen | rest, reopened & False
        self.fix(chosen, prediction, reopened)

    def choices(
        self, said: Outputs, config: SamplerConfig, sampler: type[Sampler], heat: float
    ) -> Choices:
        """Return what the row's constraint chooses from after a forward at a temperature."""
        shape = said.top_ids.shape
        drawn = self.uniforms.random(said.top_ids.size).reshape(shape) if heat else None
        return choices(said, config, sampler, self.vocab_size, heat, drawn)

    def guided(self, prediction: Prediction, start: int | None = None) -> Prediction:
        """Return a prediction that the row's constraint allows; the same if it has none.

        It is of the positions from ``start`` on, or of the window's.
        """
        if self.guide is None:
            return prediction
        begin = self.start if start is None else start
        return self.guide.choose(prediction, self.canvas, self.masked, begin)

    def fix(self, chosen: Bools, prediction: Prediction, reopened: Bools | None = None) -> None:
        """Fix positions of the window, and make others masks again."""
        window = slice(self.start, self.end)
        self.canvas[window][chosen] = prediction.tokens[chosen]
        self.masked[window][chosen] = False
        if reopened is not None and self.sampler.revises:
            self.canvas[window][reopened] = self.mask_id
            self.masked[window][reopened] = True
        self.step += 1

    def write(self, rewritten: Rewritten) -> None:
        """Let the window hold what a sampler has made of it."""
        window = slice(self.start, self.end)
        self.canvas[window], self.masked[window] = rewritten.tokens, rewritten.masked
        self.editing = not rewritten.final
        self.forced |= rewritten.forced
        self.step += 1

    def splice(self, position: int, count: int) -> None:
        """Put ``count`` masks in the place of one position of a hole, and move what follows."""
        behind = slice(position + 1, None)
        self.canvas = np.concatenate(
            (self.canvas[:position], np.full(count, self.mask_id), self.canvas[behind])
        )
        self.masked = np.concatenate(
            (self.masked[:position], np.ones(count, np.bool_), self.masked[behind])
        )
        self.given = np.concatenate(
            (self.given[:position], np.zeros(count, np.bool_), self.given[behind])
        )
        self.pinned = self.given.copy()
        grown = count - 1
        self.holes = [
            (begin + grown * (begin > position), end + grown * (end > position))
            for begin, end in self.holes
        ]
        self.answer_end = self.firm = len(self.canvas)
        self.blocks = replace(self.blocks, end=len(self.canvas))

    def plant(self, position: int, token: int) -> None:
        """Fix one position, unless it is decided or beyond the canvas."""
        if position < len(self.canvas) and self.masked[position]:
            self.canvas[position], self.masked[position] = token, False
            self.pinned[position] = True

    def look_for_end(self) -> None:
        """Extend the final prefix, and end the row where a stop rule or its length says so."""
        open_positions = np.flatnonzero(self.masked[self.known : self.firm])
        known = self.known + int(open_positions[0]) if len(open_positions) else self.firm
        if known <= self.known:
            return
        self.known = known
        if self.ending is None:
            self.ending = self.request.stop.find(self.answer())
        if self.settled and self.request.early_exit and not self.request.keep_cache:
            self.finished = True

    @property
    def settled(self) -> bool:
        """Whether the text is known to its end."""
        return self.ending is not None or self.known >= self.answer_end

    def spans(self) -> list[list[int]]:
        """Return what the holes of a template hold."""
        return [self.canvas[begin:end].tolist() for begin, end in self.holes]

    def answer(self) -> list[int]:
        """Return the generated ids that are final, stop ids included, at most max_new_tokens."""
        ids: list[int] = self.canvas[self.answer_start : min(self.known, self.answer_end)].tolist()
        return ids
