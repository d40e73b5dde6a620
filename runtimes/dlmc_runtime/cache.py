"""The context cache: committed keys and values of every row, preallocated per profile."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime import bfloat16
from dlmc_runtime.manifest import Model, Precision


@dataclass(frozen=True)
class Contents:
    """What a cache holds, on the host and in float32 whatever the engine keeps.

    Attributes:
        past: [B,H_kv,C,D] by graph input, ``past_key_values.{layer}.key`` and ``.value``; fewer
            than C where a layer keeps the last positions only, see `pieces`.
        filled: int64 [B], committed positions of each row.
    """

    past: dict[str, NDArray[np.float32]]
    filled: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Positions a row can hold (C)."""
        return max(int(array.shape[2]) for array in self.past.values())


class Saved(Protocol):
    """Keys and values of some positions of a row, kept for other rows."""

    @property
    def end(self) -> int:
        """One past the last position."""
        ...

    @property
    def nbytes(self) -> int:
        """What they take."""
        ...

    @property
    def whole(self) -> bool:
        """Whether layers that keep the last positions are in it too: a row can go on from here."""
        ...


class Cache(Protocol):
    """An engine's cache for B rows of ``size`` positions; only its engine writes to it.

    Rows are moved, saved and loaded between forwards, by whoever has rows join and leave. A forward
    of fewer rows than B uses the first of them.
    """

    size: int
    filled: NDArray[np.int64]

    def contents(self) -> Contents:
        """Return a copy of everything in it."""
        ...

    def restore(self, contents: Contents) -> None:
        """Make it hold ``contents``, which came from a cache of the same shape."""
        ...

    def move(self, source: int, target: int) -> None:
        """Let row ``target`` hold what row ``source`` holds."""
        ...

    def clear(self, row: int) -> None:
        """Fill a row with zeros, whatever it held."""
        ...

    def save(self, row: int, start: int, end: int) -> Saved:
        """Return a copy of positions ``start`` to ``end``, which the row must hold."""
        ...

    def load(self, row: int, saved: Sequence[Saved]) -> None:
        """Let a row begin with what was saved: pieces that follow one another from position 0."""
        ...


_STORED: dict[Precision, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,  # its bits
}


def widen(array: NDArray[Any], dtype: Precision) -> NDArray[np.float32]:
    """Return a float32 copy of an array of ``dtype``, bfloat16 as bits."""
    return bfloat16.to_float32(array) if dtype == "bfloat16" else array.astype(np.float32)


def narrow(array: NDArray[np.float32], dtype: Precision) -> NDArray[Any]:
    """Return float32 values in ``dtype``, bfloat16 as bits."""
    return bfloat16.from_float32(array) if dtype == "bfloat16" else array.astype(_STORED[dtype])


def cache_names(model: Model) -> list[str]:
    """Return the graph inputs of a cache, in the graph's order."""
    return [
        f"past_key_values.{layer}.{part}"
        for layer in range(model.num_hidden_layers)
        for part in ("key", "value")
    ]


def cache_shapes(model: Model, batch: int, size: int) -> dict[str, tuple[int, int, int, int]]:
    """Return the shape of every graph input of a cache for ``batch`` rows of ``size`` positions."""
    layers = [layer for layer in model.caches for _ in ("key", "value")]
    return {
        name: (batch, layer.key_value_heads, layer.capacity(size), layer.head_dim)
        for name, layer in zip(cache_names(model), layers, strict=True)
    }


@dataclass(frozen=True)
class Piece:
    """``count`` positions to copy: from ``source`` of those fed, to ``slot`` of a layer's cache."""

    source: int
    slot: int
    count: int


def pieces(start: int, count: int, capacity: int) -> list[Piece]:
    """Return where a layer's cache keeps positions ``start`` to ``start + count``.

    Position p is kept in slot p modulo ``capacity``: a layer that keeps the last ones only
    overwrites the oldest. Layers that keep everything have a slot for each.
    """
    kept = min(count, capacity)
    found, source = [], count - kept
    while source < count:
        slot = (start + source) % capacity
        length = min(count - source, capacity - slot)
        found.append(Piece(source, slot, length))
        source += length
    return found


def start_of(
    filled: NDArray[np.int64], size: int, block: int, row: int, count: int, at: int | None
) -> int:
    """Return where in its row's cache a store begins: at ``at``, or behind what is there.

    Args:
        filled: int64 [B], committed positions of each row.
        size: positions a row can hold.
        block: positions that were fed.
        row: which row stores.
        count: how many of them it stores.
        at: where, if not behind what is there.

    Raises:
        ValueError: there is no such row, it was fed fewer positions, or they do not fit.
    """
    if not 0 <= row < len(filled):
        raise ValueError(f"there is no row {row} in a cache of {len(filled)}")
    if not 0 <= count <= block:
        raise ValueError(f"{count} positions of a block of {block}")
    start = int(filled[row]) if at is None else at
    if not 0 <= start <= size - count:
        raise ValueError(f"row {row}: {count} positions at {start} do not fit into {size}")
    return start


@dataclass(frozen=True)
class HostSaved:
    """What `HostCache.save` returns: a copy by graph input, and its first position."""

    start: int
    end: int
    arrays: dict[str, tuple[int, NDArray[Any]]]
    whole: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(array.nbytes for _, array in self.arrays.values())


def saved_from(start: int, end: int, filled: int, size: int, capacity: int) -> int | None:
    """Return the first position to save of a layer; None where it holds too few of them.

    A layer that keeps everything has its part of ``start`` to ``end``. One that keeps the last
    ``capacity`` positions of ``size`` has all that a row needs that goes on at ``end``, if the row
    holds ``end`` positions; otherwise some were overwritten.
    """
    if capacity >= size:
        return start
    return max(0, end - capacity) if filled == end else None


class HostCache:
    """A cache in numpy arrays, ``past`` [B,H_kv,C,D] by graph input; bfloat16 is kept as bits.

    Layers that keep the last positions only have fewer than C, see `pieces`.
    """

    def __init__(self, model: Model, batch: int, size: int, dtype: Precision = "float32") -> None:
        self.size, self.dtype = size, dtype
        self.past: dict[str, NDArray[Any]] = {
            name: np.zeros(shape, _STORED[dtype])
            for name, shape in cache_shapes(model, batch, size).items()
        }
        self.filled = np.zeros(batch, dtype=np.int64)

    def write(
        self, row: int, count: int, present: Sequence[NDArray[Any]], at: int | None = None
    ) -> None:
        """Write the first ``count`` positions of ``present`` [B,H_kv,T,D] to a row.

        ``present`` lists key and value layer by layer, as the graph's outputs do. They go to
        position ``at``, and what was there and after it counts no longer; without ``at`` they are
        appended.

        Raises:
            ValueError: as `start_of`.
        """
        start = start_of(self.filled, self.size, present[0].shape[2], row, count, at)
        for past, own in zip(self.past.values(), present, strict=True):
            for piece in pieces(start, count, past.shape[2]):
                fed = own[row, :, piece.source : piece.source + piece.count]
                past[row, :, piece.slot : piece.slot + piece.count] = fed
        self.filled[row] = start + count

    def move(self, source: int, target: int) -> None:
        """Let row ``target`` hold what row ``source`` holds."""
        for past in self.past.values():
            past[target] = past[source]
        self.filled[target] = self.filled[source]

    def clear(self, row: int) -> None:
        """Fill a row with zeros."""
        for past in self.past.values():
            past[row] = 0
        self.filled[row] = 0

    def save(self, row: int, start: int, end: int) -> HostSaved:
        """Return a copy of positions ``start`` to ``end`` of a row."""
        filled, arrays, whole = int(self.filled[row]), {}, True
        for name, past in self.past.items():
            capacity = past.shape[2]
            first = saved_from(start, end, filled, self.size, capacity)
            if first is None:
                whole = False
                continue
            parts = [
                past[row, :, piece.slot : piece.slot + piece.count]
                for piece in pieces(first, end - first, capacity)
            ]
            arrays[name] = (first, np.concatenate(parts, axis=1))
        return HostSaved(start, end, arrays, whole)

    def load(self, row: int, saved: Sequence[Saved]) -> None:
        """Let a row begin with what was saved.

        Raises:
            ValueError: something was saved from another kind of cache.
        """
        for one in saved:
            if not isinstance(one, HostSaved):
                raise ValueError("what was saved belongs to another kind of cache")
            for name, (first, array) in one.arrays.items():
                past = self.past[name]
                for piece in pieces(first, array.shape[1], past.shape[2]):
                    copy = array[:, piece.source : piece.source + piece.count]
                    past[row, :, piece.slot : piece.slot + piece.count] = copy
            self.filled[row] = one.end

    def front(self, batch: int) -> dict[str, NDArray[Any]]:
        """Return ``past`` of the first ``batch`` rows, as views."""
        if batch == len(self.filled):
            return self.past
        return {name: past[:batch] for name, past in self.past.items()}

    def take(self, present: Sequence[NDArray[Any]]) -> bool:
        """Hold the arrays of ``present`` themselves, if they are as large as the whole cache.

        For an engine whose answers are arrays of their own: it saves a copy of everything where a
        forward renews an approximate cache.
        """
        own = list(self.past.values())
        if any(
            one.shape != two.shape or one.dtype != two.dtype
            for one, two in zip(own, present, strict=True)
        ):
            return False
        self.past = dict(zip(self.past, present, strict=True))
        self.filled[:] = self.size
        return True

    def contents(self) -> Contents:
        """Return a copy of everything in it."""
        past = {name: widen(array, self.dtype) for name, array in self.past.items()}
        return Contents(past, self.filled.copy())

    def restore(self, contents: Contents) -> None:
        """Make it hold ``contents``."""
        for name, array in contents.past.items():
            self.past[name][...] = narrow(array, self.dtype)
        self.filled[...] = contents.filled
