"""Context caches in a device's memory, and the memory that is used again for the next ones."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dlmc_runtime.cache import (
    Contents,
    Saved,
    cache_shapes,
    narrow,
    pieces,
    saved_from,
    start_of,
    widen,
)
from dlmc_runtime.engines.base import Store
from dlmc_runtime.engines.memory import Device, Layout, Place, item_size
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Model, Precision


@dataclass(frozen=True, eq=False)
class CacheMemory:
    """Memory of one cache: a tensor [B,H_kv,C,D] for each graph input, at fixed addresses."""

    batch: int
    size: int
    address: int
    layout: Layout

    @property
    def addresses(self) -> dict[str, int]:
        """Address by graph input."""
        return self.layout.addresses(self.address)


@dataclass(frozen=True, eq=False)
class DeviceSaved:
    """What `DeviceCache.save` returns: a copy on the device, freed with this object.

    Attributes:
        start, end: the positions.
        nbytes: of the copy.
        whole: whether a row can go on from here.
        address: where the copy lies.
        layout: tensors [H_kv,n,D] in it, by graph input.
        firsts: the first position of each.
    """

    start: int
    end: int
    nbytes: int
    whole: bool
    address: int
    layout: Layout
    firsts: dict[str, int]


class DeviceCache:
    """A cache whose keys and values stay on the device.

    Attributes:
        size: positions a row can hold.
        filled: int64 [B], committed positions of each row.
        memory: where they lie. It goes back to the pool with this object.
    """

    def __init__(self, pool: "CachePool", memory: CacheMemory) -> None:
        self.memory, self._pool = memory, pool
        self.size = memory.size
        self.filled = np.zeros(memory.batch, np.int64)
        weakref.finalize(self, pool.idle.append, memory).atexit = False

    def contents(self) -> Contents:
        """Return a copy of everything in it; raises `EngineError` where the engine was closed."""
        self._pool.check_open()
        device, dtype = self._pool.device, self._pool.dtype
        copy = device.staging(self.memory.layout.size)
        device.download(copy, self.memory.address)
        device.synchronize()
        places = self.memory.layout.places.items()
        past = {name: widen(place.of(copy), dtype) for name, place in places}
        return Contents(past, self.filled.copy())

    def restore(self, contents: Contents) -> None:
        """Make it hold ``contents``; raises `EngineError` where the engine was closed."""
        self._pool.check_open()
        device, dtype = self._pool.device, self._pool.dtype
        copy = device.staging(self.memory.layout.size)
        for name, place in self.memory.layout.places.items():
            place.of(copy)[...] = narrow(contents.past[name], dtype)
        device.upload(self.memory.address, copy)
        device.synchronize()
        self.filled[...] = contents.filled

    def _row(self, place: Place, row: int) -> tuple[int, int, int]:
        """Return address and bytes of a tensor's row, and bytes of one position."""
        _, heads, capacity, width = place.shape
        position = width * item_size(place.dtype)
        size = heads * capacity * position
        return self.memory.address + place.offset + row * size, size, position

    def move(self, source: int, target: int) -> None:
        """Let row ``target`` hold what row ``source`` holds."""
        self._pool.check_open()
        for place in self.memory.layout.places.values():
            (begin, size, _), (end, _, _) = self._row(place, source), self._row(place, target)
            if size:
                self._pool.device.copy_rows(end, size, begin, size, size, 1)
        self._pool.device.synchronize()
        self.filled[target] = self.filled[source]

    def clear(self, row: int) -> None:
        """Fill a row with zeros."""
        self._pool.check_open()
        for place in self.memory.layout.places.values():
            address, size, _ = self._row(place, row)
            self._pool.device.zero(address, size)
        self._pool.device.synchronize()
        self.filled[row] = 0

    def save(self, row: int, start: int, end: int) -> DeviceSaved:
        """Return a copy of positions ``start`` to ``end`` of a row.

        Raises:
            MemoryError: the device has no room for it.
        """
        self._pool.check_open()
        filled, device = int(self.filled[row]), self._pool.device
        places = self.memory.layout.places
        firsts = {
            name: first
            for name, place in places.items()
            if (first := saved_from(start, end, filled, self.size, place.shape[2])) is not None
        }
        layout = Layout.of(
            (name, (places[name].shape[1], end - first, places[name].shape[3]), places[name].dtype)
            for name, first in firsts.items()
        )
        address = device.allocate(layout.size)
        saved = DeviceSaved(
            start, end, layout.size, len(firsts) == len(places), address, layout, firsts
        )
        weakref.finalize(saved, self._pool.free, address).atexit = False
        self._copy(row, saved, into_row=False)
        return saved

    def load(self, row: int, saved: Sequence[Saved]) -> None:
        """Let a row begin with what was saved.

        Raises:
            ValueError: something was saved from another kind of cache.
        """
        self._pool.check_open()
        for one in saved:
            if not isinstance(one, DeviceSaved):
                raise ValueError("what was saved belongs to another kind of cache")
            self._copy(row, one, into_row=True)
            self.filled[row] = one.end

    def _copy(self, row: int, saved: DeviceSaved, *, into_row: bool) -> None:
        """Copy between a row and what is saved of it, head by head."""
        device = self._pool.device
        for name, own in saved.layout.places.items():
            heads, count, _ = own.shape
            place = self.memory.layout.places[name]
            begin, _, position = self._row(place, row)
            capacity = place.shape[2]
            for piece in pieces(saved.firsts[name], count, capacity):
                there = begin + piece.slot * position
                here = saved.address + own.offset + piece.source * position
                ends = (there, capacity * position), (here, count * position)
                target, source = ends if into_row else ends[::-1]
                device.copy_rows(*target, *source, piece.count * position, heads)
        device.synchronize()

    def queue_copies(self, stores: Sequence[Store], present: Sequence[tuple[int, int]]) -> None:
        """Queue the copies that write to rows; `stored` takes note of them when they are done.

        Args:
            stores: which rows, how many positions, and where to.
            present: address and T of [B,H_kv,T,D], key and value layer by layer, as in the cache.

        Raises:
            ValueError: a row has no room for so many, or was not fed so many.
        """
        places, filled = self.memory.layout.places.values(), self.filled.copy()
        for store in stores:
            fed = present[0][1]
            start = start_of(filled, self.size, fed, store.row, store.count, store.at)
            filled[store.row] = start + store.count
            for past, (address, block) in zip(places, present, strict=True):
                _, heads, capacity, width = past.shape
                position = width * item_size(past.dtype)
                for piece in pieces(start, store.count, capacity):
                    self._pool.device.copy_rows(
                        self.memory.address
                        + past.offset
                        + (store.row * heads * capacity + piece.slot) * position,
                        capacity * position,
                        address + (store.row * heads * block + piece.source) * position,
                        block * position,
                        piece.count * position,
                        heads,
                    )

    def stored(self, stores: Sequence[Store]) -> None:
        """Take note that what `queue_copies` queued is done."""
        for store in stores:
            start = int(self.filled[store.row]) if store.at is None else store.at
            self.filled[store.row] = start + store.count


class CachePool:
    """Memory of an engine's caches.

    A cache that is dropped leaves its memory to the next of the same shape, so that addresses come
    back and what was recorded for them with them. Where memory runs out, idle memory is freed.

    Args:
        device: whose memory.
        model: gives the tensors their shapes.
        dtype: their type.
        forget: is told of memory before it is freed.
    """

    def __init__(
        self, device: Device, model: Model, dtype: Precision, forget: Callable[[CacheMemory], None]
    ) -> None:
        self.device, self.dtype = device, dtype
        self.idle: list[CacheMemory] = []
        self._model, self._forget = model, forget
        self._open = True

    def free(self, address: int) -> None:
        """Return memory of something saved; a closed device has taken it back already."""
        if self._open:
            self.device.free(address)

    def check_open(self) -> None:
        """Raise `EngineError` where the engine was closed."""
        if not self._open:
            raise EngineError("the engine was closed", "load the bundle again")

    def take(self, batch: int, size: int) -> DeviceCache:
        """Return an empty cache for ``batch`` rows of ``size`` positions.

        Raises:
            MemoryError: the device has no memory for it.
            EngineError: the engine was closed, or the device failed.
        """
        self.check_open()
        memory = self._idle(batch, size) or self._allocated(batch, size)
        cache = DeviceCache(self, memory)
        # Nobody attends to what lies there, but a NaN that is multiplied by zero stays one.
        self.device.zero(memory.address, memory.layout.size)
        return cache

    def _idle(self, batch: int, size: int) -> CacheMemory | None:
        for index, memory in enumerate(self.idle):
            if (memory.batch, memory.size) == (batch, size):
                return self.idle.pop(index)
        return None

    def _allocated(self, batch: int, size: int) -> CacheMemory:
        shapes = cache_shapes(self._model, batch, size).items()
        layout = Layout.of((name, shape, self.dtype) for name, shape in shapes)
        try:
            address = self.device.allocate(layout.size)
        except MemoryError:
            if not self.idle:
                raise
            self._free_idle()
            address = self.device.allocate(layout.size)
        return CacheMemory(batch, size, address, layout)

    def _free_idle(self) -> None:
        self.device.synchronize()  # emptying it may still be queued
        while self.idle:
            memory = self.idle.pop()
            self._forget(memory)
            self.device.free(memory.address)

    def close(self) -> None:
        """Refuse further caches; the device frees all memory at once."""
        self._open = False
        self.idle.clear()
