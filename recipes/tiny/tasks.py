"""Text tasks whose answers a program can check: the yardstick of the tiny checkpoints.

Every task is a pair of functions, one that draws a problem and one that solves it, so that a
question alone decides its only right answer. A tenth of all questions, chosen by hash, is held
out: training never sees them and `benchmarks/accuracy.py` asks nothing else.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_HELD_OUT = 26  # of 256 values of the first hash byte


@dataclass(frozen=True)
class Problem:
    """A question and its only right answer."""

    task: str
    question: str
    answer: str

    @property
    def held_out(self) -> bool:
        """Whether this question belongs to the test set."""
        return hashlib.sha256(self.question.encode()).digest()[0] < _HELD_OUT


def _addition(rng: random.Random) -> tuple[str, str]:
    """Add two numbers of up to three digits, column by column, then state the sum."""
    first, second = (rng.randrange(10 ** rng.choice((1, 2, 3, 3))) for _ in range(2))
    columns, carry = [], 0
    left, right = first, second
    while True:
        total = left % 10 + right % 10 + carry
        columns.append(f"{left % 10}+{right % 10}{'+1' if carry else ''}={total}")
        left, right, carry = left // 10, right // 10, total // 10
        if not left and not right:
            break
    return f"{first}+{second}=?", " ".join((*columns, str(first + second)))


def _sorting(rng: random.Random) -> tuple[str, str]:
    """Sort five to eight digits."""
    digits = [rng.randrange(10) for _ in range(rng.randint(5, 8))]
    return "sort " + " ".join(map(str, digits)), " ".join(map(str, sorted(digits)))


def _word(rng: random.Random) -> str:
    syllables = [rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2)]
    return "".join(syllables).capitalize() + rng.choice(("", "n", "r", "s", "l"))


def _facts(rng: random.Random) -> tuple[str, str]:
    """Write two or three facts as JSON, in the order given."""
    drawn = {"name": _word(rng), "age": rng.randint(1, 99), "city": _word(rng)}
    keys = rng.sample(list(drawn), rng.randint(2, 3))
    question = "json " + ", ".join(f"{key} {drawn[key]}" for key in keys)
    return question, json.dumps({key: drawn[key] for key in keys}, separators=(",", ":"))


def _grids() -> list[tuple[int, ...]]:
    """Return the 288 valid grids of 4x4 Sudoku, row by row."""
    rows = list(itertools.permutations((1, 2, 3, 4)))

    def fits(grid: tuple[tuple[int, ...], ...]) -> bool:
        columns = all(len(set(column)) == len(column) for column in zip(*grid, strict=True))
        boxes = all(
            len({*grid[top][left : left + 2], *grid[top + 1][left : left + 2]}) == 4
            for top in range(0, len(grid) - 1, 2)
            for left in (0, 2)
        )
        return columns and boxes

    partial: list[tuple[tuple[int, ...], ...]] = [()]
    for _ in range(4):
        partial = [(*grid, row) for grid in partial for row in rows if fits((*grid, row))]
    return [tuple(itertools.chain(*grid)) for grid in partial]


_GRIDS = _grids()


def _sudoku(rng: random.Random) -> tuple[str, str]:
    """Fill five to eight blanks of a 4x4 Sudoku that has one solution."""
    while True:
        grid = rng.choice(_GRIDS)
        blanks = set(rng.sample(range(16), rng.randint(5, 8)))
        known = [i for i in range(16) if i not in blanks]
        if sum(all(other[i] == grid[i] for i in known) for other in _GRIDS) == 1:
            break

    def text(cells: list[str]) -> str:
        return " ".join("".join(cells[row : row + 4]) for row in range(0, 16, 4))

    cells = [str(value) for value in grid]
    asked = ["_" if i in blanks else cell for i, cell in enumerate(cells)]
    return "sudoku " + text(asked), text(cells)


TASKS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "addition": _addition,
    "sorting": _sorting,
    "facts": _facts,
    "sudoku": _sudoku,
}


def problems(task: str, rng: random.Random, *, held_out: bool) -> Iterator[Problem]:
    """Draw problems of ``task`` for ever, from the held-out set or from the rest."""
    while True:
        problem = Problem(task, *TASKS[task](rng))
        if problem.held_out == held_out:
            yield problem
