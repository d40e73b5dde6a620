"""The smallest automaton over bytes that accepts what an expression matches."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.constraints import worker
from dlmc_runtime.constraints.alphabet import Alphabet
from dlmc_runtime.errors import DlmcError, RequestError

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FAR = np.iinfo(np.int64).max // 2
"""The distance from where no accepting state can be reached."""

Ask = Callable[[str, bytes], Ints]

MAX_PATTERN = 400_000
_WAIT = 5 * worker.SECONDS  # a machine under load gives the child less than its time


@dataclass(frozen=True)
class Machine:
    """A deterministic automaton whose states all lead to an accepting one. It begins in state 0.

    Attributes:
        table: int32 [S+1,C], the next state for each class of bytes; S, the last row, is dead.
        classes: int64 [256], the class of each byte.
        accepting: bool [S+1].
    """

    table: NDArray[np.int32]
    classes: Ints
    accepting: Bools

    @property
    def states(self) -> int:
        """How many states there are, the dead one not counted; it is the last."""
        return len(self.accepting) - 1


def build(pattern: str, ask: Ask | None = None) -> Machine:
    """Return the automaton of a Rust expression that must match a text from end to end.

    Args:
        pattern: the expression; characters beyond ASCII are written as their code.
        ask: makes the automaton of letters, in place of a child process.

    Raises:
        RequestError: the expression is wrong, matches nothing, or is too large.
        DlmcError: the library is not installed.
    """
    if len(pattern) > MAX_PATTERN:
        raise _too_large(f"{len(pattern)} characters of expression, the limit is {MAX_PATTERN}")
    letters = Alphabet.of(pattern)
    # The sentinel lets it match the empty text. It must not occur elsewhere: the library also makes
    # the automaton that looks for a match anywhere, which is as small only if a match begins
    # nowhere else. The assertion at the end makes it follow all alternatives, not the first that
    # matches.
    whole = rf"{letters.sentinel}(?:{letters.rewrite(pattern)})\z"
    return assemble((ask or _ask)(whole, letters.spelled), letters)


def _ask(pattern: str, letters: bytes) -> Ints:
    """Ask a child process about an expression in letters."""
    said = f"{letters.hex()}\n{pattern}".encode()
    command = [sys.executable, "-P", str(Path(worker.__file__))]
    try:
        done = subprocess.run(command, input=said, capture_output=True, timeout=_WAIT, check=False)
    except subprocess.TimeoutExpired:
        raise _too_large(f"not done after {_WAIT} seconds") from None
    if done.returncode == 0:
        return np.frombuffer(done.stdout, np.int32).astype(np.int64)
    problem = done.stderr.decode(errors="replace").strip()
    if done.returncode == worker.EMPTY:
        raise _empty()
    if "ModuleNotFoundError" in problem:
        raise DlmcError("outlines-core is not installed", "install dlmc[serve]")
    if done.returncode == worker.WRONG:
        raise RequestError(
            f"the expression is refused ({problem[:200]})",
            "docs/structured-output.md lists what is understood",
        )
    raise _too_large(f"over {worker.STATES} states, {worker.SECONDS} s or {worker.BYTES >> 30} GiB")


def _empty() -> RequestError:
    return RequestError("no text meets the constraint", "give one that something matches")


def _too_large(why: str) -> RequestError:
    return RequestError(
        f"the constraint is too large: {why}",
        "bound lengths and counts lower, or leave out optional parts",
    )


def assemble(numbers: Ints, letters: Alphabet) -> Machine:
    """Make the automaton of what the child process answers of an expression in letters.

    Raises:
        RequestError: it accepts nothing.
    """
    count, finals, first = (int(number) for number in numbers[:3])
    edges = numbers[3 : 3 + 3 * count].reshape(3, count)
    final = numbers[3 + 3 * count :][:finals]
    names = np.unique(np.concatenate((edges[0], edges[2], final, [first])))
    source, target = (np.searchsorted(names, edges[row]) for row in (0, 2))
    size = len(names)
    accepting = np.zeros(size + 1, np.bool_)
    accepting[np.searchsorted(names, final)] = True
    table = np.full((size + 1, 256), size, np.int32)
    table[source, edges[1]] = target
    useful = distances(source, target, np.flatnonzero(accepting[:-1]), size) < FAR
    start = int(np.searchsorted(names, first))
    for byte in letters.sentinel.encode():
        start = int(table[start, byte])
    if start == size or not useful[start]:
        raise _empty()
    table[~np.append(useful, False)[table]] = size
    smallest, accepting = _smallest(letters.read(table), accepting, start)
    spelled = letters.spell(smallest)
    columns, classes = _distinct(spelled)
    between = np.zeros(len(spelled) - len(accepting), np.bool_)
    accepting = np.concatenate((accepting[:-1], between, [False]))
    return Machine(columns, classes, accepting)


def distances(source: Ints, target: Ints, accepting: Ints, states: int) -> Ints:
    """Return the least number of edges from each state to one of ``accepting``, int64 [S].

    It is `FAR` where there is no way. Every edge is looked at once, however long the way is.
    """
    distance = np.full(states, FAR)
    distance[accepting] = 0
    edges, front, step = _Into(source, target, states), np.unique(accepting), 0
    while len(front):
        step += 1
        before = edges.of(front)
        front = np.unique(before[distance[before] == FAR])
        distance[front] = step
    return distance


class _Into:
    """Edges by the state that they lead to."""

    def __init__(self, source: Ints, target: Ints, states: int) -> None:
        order = np.argsort(target, kind="stable")
        self._source = source[order]
        self._first = np.searchsorted(target[order], np.arange(states + 1))

    def of(self, states: Ints) -> Ints:
        """Return where the edges into some states begin, each as often as there are edges."""
        counts = self._first[states + 1] - self._first[states]
        starts = np.repeat(self._first[states] - np.cumsum(counts) + counts, counts)
        return self._source[starts + np.arange(len(starts))]


def _distinct(table: NDArray[np.int32]) -> tuple[NDArray[np.int32], Ints]:
    """Return the columns of a table that differ, and which of them each column is.

    `np.unique` would make a type with a field for each row first, which takes it seconds.
    """
    seen: dict[bytes, int] = {}
    columns = np.ascontiguousarray(table.T)
    place = np.array([seen.setdefault(column.tobytes(), len(seen)) for column in columns], np.int64)
    return table[:, np.unique(place, return_index=True)[1]], place


def _smallest(
    table: NDArray[np.int32], accepting: Bools, start: int
) -> tuple[NDArray[np.int32], Bools]:
    """Merge states that accept the same texts, and number them by their distance from the first.

    Moore's refinement, by sums of random numbers in place of tuples of groups; that the groups are
    right is checked at the end, and another draw taken where two sums have been equal by chance.
    """
    dead = len(table) - 1
    columns, _ = _distinct(table)
    for seed in range(8):
        group = _refined(columns, accepting, np.random.default_rng(seed))
        first = np.unique(group, return_index=True)[1]
        small = group[table[first]]
        if (small[group] == group[table]).all() and (accepting[first][group] == accepting).all():
            break
    else:
        raise RequestError("the constraint is too large", "ask for a smaller one")
    order = _by_distance(small, int(group[start]), int(group[dead]))
    place = np.full(len(small), len(order), np.int64)
    place[order] = np.arange(len(order))
    kept = np.append(order, group[dead])
    return place[small[kept]].astype(np.int32), accepting[first][kept]


def _refined(table: NDArray[np.int32], accepting: Bools, random: np.random.Generator) -> Ints:
    """Return the group of each state, int64 [S+1]."""
    group = 2 * _heights(table, len(table) - 1) + accepting
    group = np.unique(group, return_inverse=True)[1].reshape(-1)
    weights = random.integers(1, 1 << 62, table.shape[1], dtype=np.uint64) | np.uint64(1)
    count = 0
    while count < (count := int(group.max()) + 1):
        names = random.integers(1, 1 << 62, count, dtype=np.uint64)
        sums = names[group] * np.uint64(0x9E3779B97F4A7C15)
        sums += (names[group[table]] * weights).sum(1, dtype=np.uint64)
        group = np.unique(sums, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return group


def _heights(table: NDArray[np.int32], dead: int) -> Ints:
    """Return the length of the longest text from each state, int64 [S+1]; a bound if without end.

    States that accept the same texts have the same: a long chain, such as a counted repetition,
    falls apart at once. A state's height is known one step after the last of those behind it.
    """
    states = len(table)
    heights = np.full(states, states, np.int64)
    heights[dead] = 0
    source, column = np.nonzero(table != dead)
    edges = _Into(source, table[source, column].astype(np.int64), states)
    unknown = np.bincount(source, minlength=states)
    unknown[dead] = 1  # it is done
    front, step = np.flatnonzero(unknown == 0), 0
    while len(front):
        step += 1
        heights[front] = step
        before = edges.of(front)
        np.subtract.at(unknown, before, 1)
        front = np.unique(before[unknown[before] == 0])
    return heights


def _by_distance(table: Ints, start: int, dead: int) -> Ints:
    """Return the states that can be reached, the nearest first."""
    seen = np.zeros(len(table), np.bool_)
    seen[[start, dead]] = True
    order, front = [np.array([start])], np.array([start])
    while len(front):
        after = np.unique(table[front])
        front = after[~seen[after]]
        seen[front] = True
        order.append(front)
    return np.concatenate(order)
