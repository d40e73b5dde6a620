"""The denoising loop's one step: one forward for a batch of rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from dlmc_runtime import masks
from dlmc_runtime.engines.base import Engine, Inputs, Outputs, Store
from dlmc_runtime.errors import EngineError
from dlmc_runtime.events import Denoised
from dlmc_runtime.manifest import Profile
from dlmc_runtime.prediction import predict
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.row import Row, Task


def room(table: ProfileTable, rows: Sequence[Row]) -> tuple[int, int]:
    """Return the (batch, cache) for ``rows``; a smaller batch where they do not fit into one.

    Raises:
        RequestError: one of the rows fits no profile.
    """
    return table.room(
        len(rows),
        cached=max(row.cache_needed for row in rows),
        block=max(row.block_needed for row in rows),
        rows=max(row.head_needed for row in rows),
    )


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
        if len(rows) > self.size:
            raise ValueError(f"{len(rows)} rows in a batch of {self.size}")
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

    Rows that must prefill go first, by themselves; denoising and committing rows share a forward.

    Returns:
        One event for each row that was denoised.

    Raises:
        EngineError: the engine failed or answered NaN for one of the rows.
    """
    tasks = {index: batch.rows[index].task(batch.chunk) for index in batch.active}
    prefill = {index: task for index, task in tasks.items() if task.kind == "prefill"}
    tasks = prefill or tasks
    block = max(task.end - task.start for task in tasks.values())
    rows = max(task.head_end - task.head_start for task in tasks.values())
    profile = batch.table.smallest(batch.size, batch.context, block, rows)
    inputs = batch.inputs(profile)
    for index in range(batch.size):
        _feed(inputs, index, batch.rows[index] if index in tasks else None, tasks.get(index))
    stores = [
        Store(index, task.end - task.start)
        for index, task in tasks.items()
        if task.kind != "denoise"
    ]
    outputs = batch.engine.forward(inputs, batch.cache, stores)
    events = []
    for index, task in tasks.items():
        if task.kind == "denoise":
            events.append(_apply(batch.rows[index], index, task, inputs, outputs))
        else:
            batch.rows[index].stored(task)
    return events


def _feed(inputs: Inputs, index: int, row: Row | None, task: Task | None) -> None:
    """Fill one row of the input buffers; a row without a task is padding."""
    if row is None or task is None:
        if inputs.filled_for[index] is not None:
            masks.fill(inputs.attention_mask[index, 0], "full", "denoise", 0, 0, 0, 1)
            inputs.temperature[index] = 0.0
            inputs.filled_for[index] = None
        return
    count = task.end - task.start
    inputs.input_ids[index, :count] = row.canvas[task.start : task.end]
    key = (task, row.cached)
    if inputs.filled_for[index] != key:
        _place(inputs, index, row, task)
        inputs.filled_for[index] = key
    if task.kind == "denoise" and row.request.sampler.temperature:
        asked = task.head_end - task.head_start
        inputs.uniform[index, :asked] = row.draw(asked)


def _place(inputs: Inputs, index: int, row: Row, task: Task) -> None:
    """Fill what stays the same while a row works on one block."""
    denoise = task.kind == "denoise"
    kind: masks.Kind = "denoise" if denoise else "store"
    mask, count = inputs.attention_mask[index, 0], task.end - task.start
    masks.fill(mask, row.regime, kind, task.start, task.end, row.cached, row.block_length)
    inputs.input_ids[index, count:] = row.canvas[task.start]
    inputs.position_ids[index] = np.arange(task.start, task.start + inputs.profile.block)
    first, asked = task.head_start - task.start, task.head_end - task.head_start
    # Rows that nobody reads repeat the first one. A forward that only stores has no other.
    inputs.head_rows[index] = first
    if denoise:
        inputs.head_rows[index, :asked] += np.arange(asked)
    inputs.temperature[index] = row.request.sampler.temperature if denoise else 0.0


def _apply(row: Row, index: int, task: Task, inputs: Inputs, outputs: Outputs) -> Denoised:
    """Let a row's sampler act on its prediction."""
    count = task.head_end - task.head_start
    prediction = predict(
        outputs,
        index,
        count,
        row.request.sampler,
        tempered=row.sampler.tempered,
        uniform=inputs.uniform[index, :count],
    )
    if not np.isfinite(prediction.confidence).all():
        raise EngineError(
            f"the engine answered NaN at forward {row.forwards + 1} of row {index}",
            "compare it with the reference: dlmc validate",
        )
    if row.sampler.noisy:
        prediction = replace(prediction, noise=row.uniforms.random(count))
    row.denoised(prediction)
    return Denoised(
        row=index,
        forward=row.forwards,
        start=task.head_start - row.prompt_length,
        end=task.head_end - row.prompt_length,
        canvas=row.canvas[row.prompt_length :].copy(),
        masked=row.masked[row.prompt_length :].copy(),
        confidence=prediction.confidence,
    )
