"""Memory that a graph computes in: what engines ask of a device, and the host in its place."""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.manifest import DataType

ALIGNMENT = 256
"""Where tensors begin: what TensorRT asks for, and more than ONNX Runtime does."""

NUMPY: dict[DataType, type[np.generic]] = {
    "int64": np.int64,
    "bool": np.bool_,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,  # numpy has none: its bits
}
"""How a tensor's values are looked at on the host."""


class Recording(Protocol):
    """Work that was recorded once and can be queued again, with the addresses of then."""

    def replay(self) -> None:
        """Queue the work."""
        ...

    def release(self) -> None:
        """Give up the recording."""
        ...


class Device(Protocol):
    """Memory of a device, and one queue of work on it.

    Whatever is not called ``synchronize`` may only queue its work: host memory that it reads must
    not be changed, and what it writes must not be read, before `synchronize` returns.

    Attributes:
        kind: what ONNX Runtime calls it, ``cuda`` or ``cpu``.
        stream: the queue, as libraries of the device take it.
    """

    kind: str
    stream: int

    def allocate(self, size: int) -> int:
        """Return the address of ``size`` new bytes; raises `MemoryError`."""
        ...

    def free(self, address: int) -> None:
        """Return memory to the device."""
        ...

    def staging(self, size: int) -> NDArray[np.uint8]:
        """Return ``size`` zeroed bytes of the host that the device copies from and to."""
        ...

    def zero(self, address: int, size: int) -> None:
        """Set ``size`` bytes to zero."""
        ...

    def upload(self, address: int, source: NDArray[np.uint8]) -> None:
        """Copy ``source``, which `staging` returned, to the device."""
        ...

    def download(self, target: NDArray[np.uint8], address: int) -> None:
        """Copy from the device into ``target``, which `staging` returned."""
        ...

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        height: int,
    ) -> None:
        """Copy ``height`` rows of ``width`` bytes; ``pitch`` bytes lie between their beginnings."""
        ...

    def record(self, work: Callable[[], None]) -> Recording:
        """Record what ``work`` queues instead of queueing it; raises `EngineError`."""
        ...

    def synchronize(self) -> None:
        """Wait until all work is done; raises `EngineError` where some of it failed."""
        ...

    def close(self) -> None:
        """Return everything that was allocated; calling it again does nothing."""
        ...


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a region."""

    offset: int
    shape: tuple[int, ...]
    dtype: DataType

    @property
    def size(self) -> int:
        """Its bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * item_size(self.dtype)

    def of(self, region: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the tensor in the bytes of a region, as a view."""
        values = region[self.offset : self.offset + self.size].view(NUMPY[self.dtype])
        return values.reshape(self.shape)


@dataclass(frozen=True)
class Layout:
    """Tensors by name in one region of memory. No two begin at one address, even empty ones."""

    places: dict[str, Place]
    size: int

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, tuple[int, ...], DataType]]) -> "Layout":
        """Lay tensors (name, shape, type) out one after the other."""
        places, end = {}, 0
        for name, shape, dtype in tensors:
            places[name] = Place(end, shape, dtype)
            end += -(-max(1, places[name].size) // ALIGNMENT) * ALIGNMENT
        return cls(places, end)

    def addresses(self, base: int) -> dict[str, int]:
        """Return the tensors' addresses in a region that begins at ``base``."""
        return {name: base + place.offset for name, place in self.places.items()}


def item_size(dtype: DataType) -> int:
    """Return the bytes of one value."""
    return int(np.dtype(NUMPY[dtype]).itemsize)


class HostDevice:
    """The host in the place of a device: everything is done at once."""

    kind = "cpu"
    stream = 0

    def __init__(self) -> None:
        self._blocks: dict[int, NDArray[np.uint8]] = {}

    def allocate(self, size: int) -> int:
        """Return the address of ``size`` new bytes; raises `MemoryError`."""
        block = np.empty(size + ALIGNMENT, np.uint8)
        address = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._blocks[address] = block
        return address

    def free(self, address: int) -> None:
        """Return memory."""
        del self._blocks[address]

    def staging(self, size: int) -> NDArray[np.uint8]:
        """Return ``size`` zeroed bytes."""
        return np.zeros(size, np.uint8)

    def zero(self, address: int, size: int) -> None:
        """Set ``size`` bytes to zero."""
        ctypes.memset(address, 0, size)

    def upload(self, address: int, source: NDArray[np.uint8]) -> None:
        """Copy ``source`` to ``address``."""
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def download(self, target: NDArray[np.uint8], address: int) -> None:
        """Copy from ``address`` into ``target``."""
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        height: int,
    ) -> None:
        """Copy ``height`` rows of ``width`` bytes."""
        for row in range(height):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)

    def record(self, work: Callable[[], None]) -> Recording:
        """Refuse: ONNX Runtime records by itself, and TensorRT does not run here."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Everything is done already."""

    def close(self) -> None:
        """Return everything that was allocated; calling it again does nothing."""
        self._blocks.clear()
