"""Which tokens may follow one another: an automaton of bytes, read in tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.constraints.lexicon import Lexicon, Tree
from dlmc_runtime.constraints.machine import FAR, Machine, distances
from dlmc_runtime.errors import RequestError

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Table = NDArray[np.int32]

_AT_ONCE = 16  # states whose tokens are found together
_MOST_STEPS = 300_000_000  # nodes of the tree of tokens visited for one automaton
_KEPT_BYTES = 32 << 20  # of remembered columns


@dataclass(frozen=True)
class Edges:
    """Which states follow which by one token, ordered by state; one edge a pair.

    Attributes:
        source, target: int64 [E], states.
        token: int64 [E], one of the tokens that lead there, of the fewest bytes.
        count: int64 [E], how many tokens do.
        first: int64 [S+1], where each state's edges begin.
        key: int64 [E], source and target as one number; they ascend.
    """

    source: Ints
    target: Ints
    token: Ints
    count: Ints
    first: Ints
    key: Ints

    @classmethod
    def ordered(cls, columns: Sequence[Ints], states: int) -> "Edges":
        """Return edges of sources, targets, tokens and counts that are in order already."""
        source, target, token, count = columns
        first = np.searchsorted(source, np.arange(states + 1))
        return cls(source, target, token, count, first, source * states + target)

    def of(self, states: Ints) -> Ints:
        """Return the edges that begin in ``states``, in their order."""
        counts = self.first[states + 1] - self.first[states]
        total = int(counts.sum())
        starts = np.repeat(self.first[states] - np.cumsum(counts) + counts, counts)
        return starts + np.arange(total)


@dataclass(frozen=True)
class Automaton:
    """A token-level automaton. Immutable but for what it remembers, and shared by threads.

    States below ``end`` are those of the machine, before whose text may go on; state 0 is the
    first one. ``end`` is what a stop id leads to from an accepting state: whatever stands behind
    it does not count, so that every token leads from it to itself. ``begin`` is the state before
    any token, where tokens add another text at the beginning of one than behind others; else it is
    0. ``dead`` is where a token that is not allowed leads.

    Attributes:
        machine: reads bytes.
        lexicon: what tokens are in bytes.
        edges: of all states.
        distance: int64 [S], tokens to an accepting state, at least; `FAR` where there is none.
    """

    machine: Machine
    lexicon: Lexicon
    edges: Edges
    distance: Ints
    _columns: dict[int, Table] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def end(self) -> int:
        """The state behind a stop id."""
        return self.machine.states

    @property
    def begin(self) -> int:
        """The state before the first token."""
        return self.end + 1 if self.lexicon.leading_tree is not None else 0

    @property
    def dead(self) -> int:
        """The state behind a token that is not allowed; it has no edges."""
        return self.end + 2

    @property
    def shortest(self) -> int:
        """How many tokens the shortest text that is accepted has."""
        return int(self.distance[self.begin])

    def column(self, token: int) -> Table:
        """Return where a token leads from each state, int32 [S]; `dead` where it may not be."""
        column = self._columns.get(token)
        if column is None:
            column = self._column(token)
            with self._lock:
                if (len(self._columns) + 1) * column.nbytes > _KEPT_BYTES:
                    self._columns.clear()
                self._columns[token] = column
        return column

    def _column(self, token: int) -> Table:
        column = np.full(self.dead + 1, self.dead, np.int32)
        text = self.lexicon.texts.get(token)
        if text is not None:
            column[: self.end] = self._read(np.arange(self.end), text)
            if self.begin:
                begun = self.lexicon.leading.get(token, text)
                first = np.zeros(1, np.int64)
                column[self.begin] = self._read(first, begun)[0] if begun else self.dead
        elif token in self.lexicon.stops:
            column[_accepting(self.machine, self.lexicon)] = self.end
        column[self.distance[column] >= FAR] = self.dead
        column[self.end] = self.end
        return column

    def _read(self, states: Ints, text: bytes) -> Ints:
        for byte in text:
            states = self.machine.table[states, self.machine.classes[byte]]
        return np.where(states == self.machine.states, self.dead, states)

    def columns(self, tokens: Ints) -> Table:
        """Return where tokens, int64 [n], lead from each state, int32 [n,S]."""
        return np.stack([self.column(token) for token in tokens.tolist()])

    def advance(self, state: int, tokens: Ints) -> int:
        """Return the state behind tokens."""
        for token in tokens.tolist():
            state = int(self.column(token)[state])
        return state

    def accepts(self, tokens: Ints) -> bool:
        """Return whether tokens are a text that meets the constraint, with a stop id or without."""
        return bool(self.distance[self.advance(self.begin, tokens)] == 0)

    def completes(self, tokens: Ints) -> bool:
        """Return whether tokens are a text that is accepted, behind which nothing may stand."""
        state = np.array([self.advance(self.begin, tokens)])
        after = self.edges.target[self.edges.of(state)]
        return self.accepts(tokens) and bool((after == self.end).all())


def _accepting(machine: Machine, lexicon: Lexicon) -> Ints:
    """Return the states of the automaton that accept and are not behind a stop id."""
    accepting = np.flatnonzero(machine.accepting)
    begins = lexicon.leading_tree is not None and bool(machine.accepting[0])
    return np.append(accepting, machine.states + 1) if begins else accepting


def automaton(machine: Machine, lexicon: Lexicon) -> Automaton:
    """Read a machine of bytes in tokens.

    Raises:
        RequestError: no text of these tokens meets it, or there is too much to find out.
    """
    found = _Lift(machine)
    for start in range(0, machine.states, _AT_ONCE):
        states = np.arange(start, min(start + _AT_ONCE, machine.states))
        found.add(lexicon.tree, states, states)
    end = machine.states
    found.note(np.array([end]), np.array([end]), lexicon.stops[0], lexicon.size)
    if lexicon.leading_tree is not None:
        found.add(lexicon.leading_tree, np.array([end + 1]), np.array([0]))
    accepting = _accepting(machine, lexicon)
    found.note(accepting, np.full(len(accepting), end), lexicon.stops[0], len(lexicon.stops))
    source, target, token, count = found.edges()
    distance = distances(source, target, np.append(accepting, end), end + 3)
    begin = end + 1 if lexicon.leading_tree is not None else 0
    if distance[begin] >= FAR:
        raise RequestError(
            "no text of the model's tokens meets the constraint", "give one that something matches"
        )
    kept = distance[target] < FAR
    columns = [column[kept] for column in (source, target, token, count)]
    return Automaton(machine, lexicon, Edges.ordered(columns, len(distance)), distance)


class _Lift:
    """Collects edges between states."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parts: list[tuple[Ints, Ints, Ints, Ints]] = []
        self.steps = 0

    def note(self, source: Ints, target: Ints, token: int, count: int) -> None:
        """Add edges of a given token."""
        size = len(source)
        self.parts.append((source, target, np.full(size, token), np.full(size, count)))

    def add(self, tree: Tree, names: Ints, states: Ints) -> None:
        """Add the edges of some states, by all tokens of the tree at once.

        Args:
            tree: of the tokens.
            names: int64 [n], what the edges' source is called.
            states: int64 [n], of the machine.
        """
        table, classes, dead = self.machine.table, self.machine.classes, self.machine.states
        byte = classes[tree.byte]
        node, owner, state = np.zeros_like(states), np.arange(len(states)), states
        found: list[tuple[Ints, Ints, Ints, Ints]] = []
        while len(node):
            children = tree.last[node] - tree.first[node]
            total = int(children.sum())
            self.steps += total
            if self.steps > _MOST_STEPS:
                raise RequestError(
                    "the constraint is too large for a vocabulary of this size",
                    "bound lengths and counts lower, or leave out optional parts",
                )
            begins = tree.first[node] - np.cumsum(children) + children
            node = np.repeat(begins, children) + np.arange(total)
            owner, state = np.repeat(owner, children), np.repeat(state, children)
            state = table[state, byte[node]].astype(np.int64)
            alive = state != dead
            node, owner, state = node[alive], owner[alive], state[alive]
            ends = np.flatnonzero(tree.count[node])
            if len(ends):
                found.append(
                    (owner[ends], state[ends], tree.token[node[ends]], tree.count[node[ends]])
                )
        if not found:
            return
        owners, targets, tokens, counts = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        keys, first, place = np.unique(
            owners * (dead + 1) + targets, return_index=True, return_inverse=True
        )
        total_of = np.bincount(place.reshape(-1), counts).astype(np.int64)
        self.parts.append((names[keys // (dead + 1)], targets[first], tokens[first], total_of))

    def edges(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return sources, targets, tokens and counts, ordered by source and target."""
        columns = [np.concatenate(column) for column in zip(*self.parts, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        source, target, token, count = (column[order].astype(np.int64) for column in columns)
        return source, target, token, count
