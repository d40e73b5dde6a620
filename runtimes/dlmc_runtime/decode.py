"""The denoising loop's one step: one forward for a batch of rows."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime import masks
from dlmc_runtime.batch import Batch
from dlmc_runtime.engines.base import Inputs, Outputs, Store
from dlmc_runtime.errors import EngineError
from dlmc_runtime.events import Denoised
from dlmc_runtime.manifest import Attention, Profile
from dlmc_runtime.prediction import candidates, predict
from dlmc_runtime.row import Row
from dlmc_runtime.samplers.base import Sampler
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.task import Task

# Tasks that may feed much more than a block: a prompt, or everything to renew a cache.
WIDE = ("prefill", "refresh")


@dataclass(frozen=True)
class Turn:
    """The next forward: its shape, and what each of the rows that take part needs from it."""

    profile: Profile
    tasks: Mapping[int, Task]


def plan(batch: Batch) -> Turn:
    """Choose which rows take part in the next forward; at least one row must be active.

    All share it where they fit into the shape that most need. Rows that must feed more take turns
    with the others, themselves first, so that neither a long prompt nor a stream of short ones
    holds anybody up; who waits but fits into the shape of the others' turn takes part in it. Their
    turns are no wider than they need.
    """
    tasks = {index: batch.rows[index].task(batch.chunk) for index in batch.active}
    wide = {index: task for index, task in tasks.items() if task.kind in WIDE}
    others = {index: task for index, task in tasks.items() if index not in wide}
    if others:
        turn = _turn(batch, batch.narrow(), others, wide)
        if len(turn.tasks) == len(tasks) or batch.fed_wide:
            return turn
    chosen, width = batch.fill([*wide])
    rest = {index: task for index, task in tasks.items() if index not in chosen}
    return _turn(batch, width, {index: wide[index] for index in chosen}, rest)


def _turn(batch: Batch, width: int, tasks: Mapping[int, Task], waiting: Mapping[int, Task]) -> Turn:
    """Return a forward for ``tasks``, and for who waits and fits in as well.

    Their slots are computed whether they use them or not.
    """
    block = max(task.fed for task in tasks.values())
    rows = max(task.read for task in tasks.values())
    profile = batch.table.smallest(width, batch.context, block, rows)
    riders = {
        index: task
        for index, task in waiting.items()
        if task.fed <= profile.block
        and task.read <= profile.rows
        and batch.places[index] + batch.rows[index].slots <= width
    }
    return Turn(profile, {**tasks, **riders})


def forward(batch: Batch, turn: Turn) -> Outputs:
    """Run the engine for the rows of a turn.

    Raises:
        EngineError: the engine failed.
    """
    inputs = batch.inputs(turn.profile)
    feeds = _feeds(batch, turn.tasks)
    for slot in range(turn.profile.batch):
        _feed(inputs, slot, *feeds.get(slot, (None, None, None)))
    stores = [Store(slot, task.kept, task.at) for slot, (_, task, _) in feeds.items() if task.kept]
    batch.fed_wide = any(task.kind in WIDE for task in turn.tasks.values())
    began = time.perf_counter()
    try:
        return batch.engine.forward(inputs, batch.cache, stores)
    finally:
        batch.seconds += time.perf_counter() - began


def step(batch: Batch) -> list[Denoised]:
    """Run one forward and apply it to every row that took part.

    Returns:
        One event for each row that was denoised.

    Raises:
        EngineError: the engine failed or answered NaN for one of the rows.
    """
    turn = plan(batch)
    outputs = forward(batch, turn)
    found = [apply(batch, turn, outputs, index) for index in turn.tasks]
    return [event for event in found if event is not None]


_GREEDY = SamplerConfig()
Feed = tuple[Row, Task, NDArray[np.int64]]


def _feeds(batch: Batch, tasks: Mapping[int, Task]) -> dict[int, Feed]:
    """Return what each slot of the batch is fed: a row's canvas, and its unguided twin's."""
    feeds: dict[int, Feed] = {}
    for index, task in tasks.items():
        row, slot = batch.rows[index], batch.places[index]
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
    key = (row.number, task, twin)
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


def apply(batch: Batch, turn: Turn, outputs: Outputs, index: int) -> Denoised | None:
    """Let a row go on with what the head said; return what it shows if it was denoised.

    Raises:
        EngineError: the engine answered NaN.
    """
    row, task, slot = batch.rows[index], turn.tasks[index], batch.places[index]
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
    uniform = batch.inputs(turn.profile).uniform[slot, :count]
    prediction = predict(said, config, sampler, uniform, temperature)
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
    if row.guide is not None:
        prediction = replace(prediction, choices=row.choices(said, config, sampler, temperature))
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
