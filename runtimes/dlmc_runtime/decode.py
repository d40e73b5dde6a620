"""The denoising loop's one step: one forward for a batch of rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime import masks
from dlmc_runtime.engines.base import Engine, Inputs, Outputs, Store
from dlmc_runtime.errors import EngineError, RequestError
from dlmc_runtime.events import Denoised
from dlmc_runtime.manifest import Attention, Profile
from dlmc_runtime.prediction import candidates, predict
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.row import Row
from dlmc_runtime.samplers.base import Sampler
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.task import Task


def room(table: ProfileTable, rows: Sequence[Row]) -> tuple[int, int]:
    """Return the (batch, cache) for ``rows``; a smaller batch where they do not fit into one.

    Raises:
        RequestError: one of the rows fits no profile.
    """
    return table.room(
        sum(row.slots for row in rows),
        cached=max(row.regime.cache_needed for row in rows),
        block=max(row.regime.block_needed for row in rows),
        rows=max(row.regime.head_needed for row in rows),
    )


def as_many_as_fit(table: ProfileTable, rows: Sequence[Row]) -> int:
    """Return how many of the first ``rows`` can share a batch; one at least, which must fit."""
    count = 1
    while count < len(rows):
        group = rows[: count + 1]
        try:
            size, _ = room(table, group)
        except RequestError:  # each fits a profile, but none fits all of them
            break
        if sum(row.slots for row in group) > size:
            break
        count += 1
    return count


class Batch:
    """Rows that share forwards. Each keeps its own position, length, sampler and phase.

    Raises:
        RequestError: the rows do not fit any profile of the engine.
        EngineError: there is no memory for the profile's cache.
    """

    def __init__(self, engine: Engine, rows: Sequence[Row]) -> None:
        self.engine, self.rows = engine, list(rows)
        self.table = ProfileTable(engine.profiles)
        self.size, self.context = room(self.table, self.rows)
        if sum(row.slots for row in rows) > self.size:
            raise ValueError(f"{len(rows)} rows in a batch of {self.size}")
        ends = accumulate((row.slots for row in rows), initial=0)
        self.slots = list(ends)[:-1]  # where each row's own begin
        with _memory(f"the cache of {self.size} rows of {self.context} positions"):
            self.cache = engine.cache(self.size, self.context)
        self.chunk = self.table.chunk(self.size, self.context)
        self._inputs: dict[Profile, Inputs] = {}

    def inputs(self, profile: Profile) -> Inputs:
        """Return the profile's input buffers, allocated at first use."""
        if profile not in self._inputs:
            with _memory(f"the inputs of {profile}"):
                self._inputs[profile] = self.engine.inputs(profile)
        return self._inputs[profile]

    @property
    def active(self) -> list[int]:
        """Indices of rows that still need forwards."""
        return [index for index, row in enumerate(self.rows) if not row.finished]


@contextmanager
def _memory(what: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, ValueError) as error:  # numpy's words for too much, and for far too much
        raise EngineError(
            f"there is no memory for {what}", "build with a smaller --batch, --cache or --prefill"
        ) from error


def step(batch: Batch) -> list[Denoised]:
    """Run one forward and apply it to every row that took part.

    Rows that must feed much, prefill or refresh, go first and by themselves; the others share a
    forward.

    Returns:
        One event for each row that was denoised.

    Raises:
        EngineError: the engine failed or answered NaN for one of the rows.
    """
    tasks = {index: batch.rows[index].task(batch.chunk) for index in batch.active}
    for kind in ("prefill", "refresh"):
        wide = {index: task for index, task in tasks.items() if task.kind == kind}
        tasks = wide or tasks
        if wide:
            break
    block = max(task.fed for task in tasks.values())
    rows = max(task.read for task in tasks.values())
    profile = batch.table.smallest(batch.size, batch.context, block, rows)
    inputs = batch.inputs(profile)
    feeds = _feeds(batch, tasks)
    for slot in range(batch.size):
        _feed(inputs, slot, *feeds.get(slot, (None, None, None)))
    stores = [Store(slot, task.kept, task.at) for slot, (_, task, _) in feeds.items() if task.kept]
    outputs = batch.engine.forward(inputs, batch.cache, stores)
    found = (
        _apply(batch.rows[index], index, batch.slots[index], task, inputs, outputs)
        for index, task in tasks.items()
    )
    return [event for event in found if event is not None]


_GREEDY = SamplerConfig()
Feed = tuple[Row, Task, NDArray[np.int64]]


def _feeds(batch: Batch, tasks: Mapping[int, Task]) -> dict[int, Feed]:
    """Return what each slot of the batch is fed: a row's canvas, and its unguided twin's."""
    feeds: dict[int, Feed] = {}
    for index, task in tasks.items():
        row, slot = batch.rows[index], batch.slots[index]
        feeds[slot] = (row, task, row.canvas)
        if row.slots > 1:
            feeds[slot + 1] = (row, task, row.unguided())
    return feeds


def _feed(
    inputs: Inputs,
    slot: int,
    row: Row | None,
    task: Task | None,
    canvas: NDArray[np.int64] | None,
) -> None:
    """Fill one slot of the input buffers; one without a task is padding."""
    if row is None or task is None or canvas is None:
        if inputs.filled_for[slot] is not None:
            for mask in inputs.masks():
                masks.fill(mask[slot, 0], np.ones((1, 1), np.bool_), 0)
            inputs.temperature[slot] = 0.0
            if inputs.denoising is not None:
                inputs.denoising[slot] = False
            _guide(inputs, slot, 0.0, slot)
            inputs.filled_for[slot] = None
        return
    own = task.end - task.start
    inputs.input_ids[slot, :own] = canvas[task.start : task.end]
    twin = canvas is not row.canvas
    key = (id(row), task, twin)
    if inputs.filled_for[slot] != key:
        _place(inputs, slot, row, task, twin=twin)
        inputs.filled_for[slot] = key
    inputs.temperature[slot] = row.regime.temperature(task)
    if inputs.self_conditioning is not None:
        expected = row.regime.expected(task)
        inputs.self_conditioning[slot, :own] = 0.0 if expected is None else expected
    if inputs.temperature[slot] and not twin:
        inputs.uniform[slot, : task.read] = row.draw(task.read)


def _place(inputs: Inputs, slot: int, row: Row, task: Task, *, twin: bool) -> None:
    """Fill what stays the same while a row works on one block."""
    own, extra = task.end - task.start, task.shadow[1] - task.shadow[0]
    inputs.input_ids[slot, own : own + extra] = row.mask_id
    inputs.input_ids[slot, own + extra :] = row.mask_id
    positions = inputs.position_ids[slot]
    positions[:] = np.arange(task.start, task.start + inputs.profile.block)
    positions[own : own + extra] = np.arange(*task.shadow)
    among = masks.own(task.own, positions[:own], row.blocks)
    if extra:
        among = masks.add_shadow(among, task.start, task.shadow)
    for mask in inputs.masks():
        masks.fill(mask[slot, 0], among, task.visible, task.hole)
    if inputs.sliding_attention_mask is not None:
        _slide(inputs.sliding_attention_mask[slot, 0], positions, row.attention, task)
    asked = np.arange(task.head_start, task.head_end) - task.shift - task.start
    # Rows that nobody reads repeat the first one.
    inputs.head_rows[slot] = max(int(asked[0]), 0)
    inputs.head_rows[slot, : len(asked)] = np.maximum(asked, 0)
    inputs.head_rows[slot, len(asked) : len(asked) + extra] = own + np.arange(extra)
    scale = row.request.sampler.guidance
    _guide(inputs, slot, scale if not twin else 0.0, slot + 1 if scale and not twin else slot)
    if inputs.adapter is not None:
        inputs.adapter[slot] = float(task.adapter)
    if inputs.denoising is not None:
        inputs.denoising[slot] = task.kind == "denoise"


def _slide(
    mask: masks.Bools, positions: NDArray[np.int64], attention: Attention, task: Task
) -> None:
    """Hide what layers with a mask of their own do not see.

    A canvas sees all that such a layer holds of its context, however far away.
    """
    window, context = attention.sliding_window, attention.sliding_context
    if window is not None:
        masks.narrow(mask, positions, task.fed, window)
    elif context is not None and task.own == "causal":
        masks.trail(mask, positions[: task.fed], task.visible, context)


def _guide(inputs: Inputs, slot: int, scale: float, partner: int) -> None:
    if inputs.guidance is not None and inputs.partner is not None:
        inputs.guidance[slot], inputs.partner[slot] = scale, partner


def _apply(
    row: Row, index: int, slot: int, task: Task, inputs: Inputs, outputs: Outputs
) -> Denoised | None:
    """Let a row go on with what the head said."""
    count = task.head_end - task.head_start
    said = outputs.row(slot, 0, count)
    denoised = task.kind in ("denoise", "refresh")
    edge = row.leading(task)
    if edge is not None:
        said = said.led_by(edge)
    config, sampler = row.request.sampler, type(row.sampler)
    temperature = row.regime.temperature(task)
    if not (denoised or temperature):
        config, sampler = _GREEDY, Sampler
    prediction = predict(said, config, sampler, inputs.uniform[slot, :count], temperature)
    if denoised and "shadow" in sampler.needs:
        shadow = candidates(outputs.row(slot, count, task.read))
        prediction = replace(prediction, shadow=shadow)
    if not prediction.finite:
        raise EngineError(
            f"the engine answered NaN at forward {row.forwards + 1} of row {index}",
            "compare it with the reference: dlmc validate",
        )
    if denoised and "noise" in sampler.asks_for(config):
        prediction = replace(prediction, noise=row.uniforms.random(count))
    row.done(task, prediction, said)
    if not denoised:
        return None
    start = row.answer_start
    return Denoised(
        row=index,
        forward=row.forwards,
        start=task.head_start - start,
        end=task.head_end - start,
        canvas=row.canvas[start:].copy(),
        masked=row.masked[start:].copy(),
        confidence=prediction.confidence,
    )
