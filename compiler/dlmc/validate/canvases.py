"""The first forward after which engine and reference go on with different canvases."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlmc.validate.recording import Recording, State
from dlmc.validate.report import Cell, Divergence, Row
from dlmc.validate.tolerances import COMMITTED
from dlmc_runtime.engines.base import Engine, Outputs
from dlmc_runtime.text import TextCodec

Canvas = tuple[NDArray[np.int64], NDArray[np.bool_]]

_BEFORE = 32  # tokens of the prompt that are shown


def find_state(recording: Recording, row: Row) -> State | None:
    """Return the forward that a row points at."""
    place = row.where
    if place is None:
        return None
    return next(
        (
            state
            for state in recording.states
            if (state.prompt, state.forward) == (place.prompt, place.forward)
        ),
        None,
    )


def diverge(
    rows: Sequence[Row], recording: Recording, engine: Engine, text: TextCodec | None
) -> Divergence | None:
    """Return both canvases after the first forward that commits something else.

    Where all forwards by themselves commit the same and whole answers still differ, they are
    those answers; where nothing differs, None.
    """
    committed = next((row for row in rows if row.output == COMMITTED), None)
    state = find_state(recording, committed) if committed else None
    if state is not None and state.choice is not None:
        outputs, _ = state.replay(engine)
        ours, theirs = (_after(state, one) for one in (outputs, state.outputs))
        start = max(recording.starts[state.prompt] - _BEFORE, 0)
        cells = _cells(ours, theirs, start, text)
        return Divergence(state.prompt, state.forward, start, *cells)
    return None


def diverged_answers(
    found: Sequence[Sequence[int]], recording: Recording, text: TextCodec | None
) -> Divergence | None:
    """Return the first two whole answers that differ, None where none do."""
    for prompt, (ours, theirs) in enumerate(zip(found, recording.answers, strict=True)):
        if tuple(ours) != tuple(theirs):
            start = recording.starts[prompt]
            cells = _cells(_decided(ours), _decided(theirs), 0, text)
            return Divergence(prompt, 0, start, *cells)
    return None


def _after(state: State, outputs: Outputs) -> Canvas:
    """Return tokens and masks after the sampler has read ``outputs``."""
    canvas, masked = state.canvas.copy(), state.masked.copy()
    if state.choice is None:
        return canvas, masked
    prediction = state.choice.predict(outputs)
    if np.isfinite(prediction.confidence).all():
        chosen = state.choice.select(prediction)
        window = slice(state.task.head_start, state.task.head_end)
        canvas[window][chosen] = prediction.tokens[chosen]
        masked[window][chosen] = False
    return canvas, masked


def _decided(tokens: Sequence[int]) -> Canvas:
    return np.array(tokens, np.int64), np.zeros(len(tokens), np.bool_)


def _cells(
    ours: Canvas, theirs: Canvas, start: int, text: TextCodec | None
) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Return what is shown of both canvases, from ``start``."""
    return _side(ours, theirs, start, text), _side(theirs, ours, start, text)


def _side(own: Canvas, other: Canvas, start: int, text: TextCodec | None) -> tuple[Cell, ...]:
    tokens, masked = own
    cells = []
    for at in range(start, len(tokens)):
        there = at < len(other[0])
        same = there and masked[at] == other[1][at] and (masked[at] or tokens[at] == other[0][at])
        cells.append(Cell(_show(int(tokens[at]), text), bool(masked[at]), not same))
    return tuple(cells)


def _show(token: int, text: TextCodec | None) -> str:
    return str(token) if text is None else text.token(token)
