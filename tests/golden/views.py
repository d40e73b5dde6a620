"""How the packs show a row while it is denoised."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dlmc_runtime.row import Row
from dlmc_runtime.task import Task

Ids = list[int]


def _until_block_end(row: Row, position: int) -> Ids:
    ids: Ids = row.canvas[: row.blocks.end_of(position)].tolist()
    return ids


def _text(row: Row) -> Ids:
    """Return prompt and answer, the stop id included."""
    answer = row.answer()
    return [
        *row.request.prompt,
        *(answer if row.ending is None else answer[: row.ending.tokens + 1]),
    ]


def _filled(row: Row) -> Ids:
    """Return the canvas up to a block that holds the end of text, of which its rest is made."""
    if row.ending is None:
        ids: Ids = row.canvas.tolist()
        return ids
    ids = _until_block_end(row, row.start)
    at = len(row.request.prompt) + row.ending.tokens
    return ids[:at] + ids[at : at + 1] * (len(ids) - at)


@dataclass
class View:
    """Collects the states of one row as its pack does.

    ``first`` is the state before any forward; ``before`` and ``after`` what is noted around one,
    None where nothing is; ``final`` how the pack writes the result, and ``ends`` whether that is
    its last state.
    """

    first: Callable[[Row], Ids | None]
    before: Callable[[Row, Task], Ids | None]
    after: Callable[[Row, Task], Ids | None]
    final: Callable[[Row], Ids]
    ends: bool = False
    states: list[Ids] = field(default_factory=list)

    def note(self, state: Ids | None) -> None:
        """Keep a state, if there is one."""
        if state is not None:
            self.states.append(state)


def _never(row: Row, task: Task | None = None) -> Ids | None:
    del row, task
    return None


def _denoised(task: Task) -> bool:
    return task.kind in ("denoise", "refresh")


def make(name: str) -> View:
    """Return a view: ``whole`` canvas after each denoising forward; ``ended``, the same, whose
    final state is filled with the end of text from its first on; ``grown``, the same up to the
    end of the block; ``before`` each denoising forward up to the end of the block; ``draft``
    before each draft and verification; ``none``.
    """
    if name == "whole":
        return View(
            lambda row: row.canvas.tolist(),
            _never,
            lambda row, task: row.canvas.tolist() if _denoised(task) else None,
            lambda row: row.canvas.tolist(),
        )
    if name == "ended":
        return replace(make("whole"), final=_filled)
    if name == "grown":
        return View(
            lambda row: list(row.request.prompt),
            _never,
            lambda row, task: _until_block_end(row, task.start) if _denoised(task) else None,
            lambda row: _until_block_end(row, row.start),
        )
    if name == "before":
        return View(
            _never,
            lambda row, task: _until_block_end(row, row.start) if _denoised(task) else None,
            _never,
            _text,
            ends=True,
        )
    if name == "draft":
        return View(_never, _draft, _never, _text)
    return View(_never, _never, _never, _text)


def _draft(row: Row, task: Task) -> Ids | None:
    if task.kind == "prefill" or row.end - row.start == 1:
        return None
    ids: Ids = row.canvas[row.start : row.end].tolist()
    return ids
