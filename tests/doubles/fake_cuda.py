# ruff: noqa: N802, N803, N815 (names are those of cuda-python)
"""A double of the part of cuda-python that dlmc uses: `Cuda` stands for ``cuda.bindings.runtime``.

Device memory lies at addresses that no host pointer has, and is NaN until written. Work on a
stream is queued, and done when somebody waits for it; until then the host memory that it will
write holds rubbish. What a correct program never does and a GPU would answer with corrupted memory
raises `MisuseError`: copies in a wrong direction or out of bounds, freed memory, host memory
changed while a copy of it is queued, graphs that were destroyed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from cuda.bindings import runtime

FIRST_ADDRESS = 1 << 56  # no process has memory there
GARBAGE = 0xFF  # NaN in every float type, -1 in every integer type
STALE = 0xEE
GAP = 1 << 20  # between blocks, so that an address beyond one is in no other
Error = runtime.cudaError_t
Kind = runtime.cudaMemcpyKind
OK = Error.cudaSuccess
Answer = tuple[Any, ...]


class MisuseError(AssertionError):
    """What would corrupt memory, or wait for ever, on a GPU."""


@dataclass(eq=False)
class Block:
    """Memory of the device, or pinned memory of the host."""

    start: int
    data: np.ndarray
    kind: Literal["device", "pinned"]
    live: bool = True


@dataclass(frozen=True)
class Work:
    """Something that waits on a stream: what memory it touches, and what it does."""

    label: str
    touches: tuple[tuple[int, int], ...]
    run: Callable[[], None]


@dataclass(eq=False)
class Stream:
    """A queue of work; while it is captured, work goes to ``captured`` instead."""

    queue: list[Work] = field(default_factory=list)
    captured: list[Work] | None = None
    invalid: bool = False


@dataclass(eq=False)
class Graph:
    """Work that was captured, or made executable."""

    work: tuple[Work, ...]
    live: bool = True


class Cuda:
    """The double. Its functions answer tuples that begin with an error code, as the real ones.

    Args:
        memory: bytes of the device.
        capability: of the device; None where there is none.

    Attributes:
        calls: names of the functions that were called, in order.
        failure: what the next `cudaStreamSynchronize` answers.
    """

    cudaError_t = Error
    cudaMemcpyKind = Kind
    cudaStreamCaptureMode = runtime.cudaStreamCaptureMode
    cudaDeviceAttr = runtime.cudaDeviceAttr
    cudaStreamNonBlocking = runtime.cudaStreamNonBlocking

    def __init__(self, memory: int = 1 << 30, capability: tuple[int, int] | None = (8, 9)) -> None:
        self.memory, self.capability = memory, capability
        self.calls: list[str] = []
        self.failure = OK
        self.blocks: list[Block] = []
        self.streams: dict[int, Stream] = {}
        self.graphs: list[Graph] = []
        self.executables: list[Graph] = []
        self._next = FIRST_ADDRESS

    def live(self) -> dict[str, int]:
        """Return how much of what was made has not been given back; empty where all was."""
        counts = {
            "device": sum(b.live and b.kind == "device" for b in self.blocks),
            "pinned": sum(b.live and b.kind == "pinned" for b in self.blocks),
            "streams": len(self.streams),
            "graphs": sum(graph.live for graph in self.graphs),
            "executables": sum(graph.live for graph in self.executables),
        }
        return {name: count for name, count in counts.items() if count}

    # What the double of TensorRT needs besides.

    def find(self, address: int, size: int, kind: str, what: str) -> np.ndarray:
        """Return the bytes at an address; they must lie in one live block of that kind."""
        for block in self.blocks:
            offset = address - block.start
            if 0 <= offset <= len(block.data) and offset + size <= len(block.data):
                if not block.live:
                    raise MisuseError(f"{what}: memory at {address:#x} was freed")
                if block.kind == kind:
                    return block.data[offset : offset + size]
        raise MisuseError(f"{what}: no {size} bytes of {kind} memory at {address:#x}")

    def stream(self, handle: Any) -> Stream:
        """Return a stream that was created and not destroyed."""
        if int(handle) not in self.streams:
            raise MisuseError(f"there is no stream {handle}")
        return self.streams[int(handle)]

    def queue(self, stream: Any, work: Work) -> None:
        """Queue work on a stream, or add it to what is captured from it."""
        for address, size in work.touches:
            self.find(address, size, self._kind(address), work.label)
        found = self.stream(stream)
        (found.queue if found.captured is None else found.captured).append(work)

    def _kind(self, address: int) -> str:
        return "device" if address >= FIRST_ADDRESS else "pinned"

    def _capturing(self) -> bool:
        """Tell whether a stream is captured, which a call that may not happen then invalidates."""
        captured = [one for one in self.streams.values() if one.captured is not None]
        for one in captured:
            one.invalid = True
        return bool(captured)

    # Device and memory.

    def cudaGetDeviceCount(self) -> Answer:
        return (Error.cudaErrorNoDevice, None) if self.capability is None else (OK, 1)

    def cudaSetDevice(self, device: Any) -> Answer:
        self.calls.append("cudaSetDevice")
        return (Error.cudaErrorNoDevice,) if self.capability is None else (OK,)

    def cudaDeviceGetAttribute(self, attr: Any, device: Any) -> Answer:
        assert self.capability is not None
        kinds = self.cudaDeviceAttr
        wanted = (kinds.cudaDevAttrComputeCapabilityMajor, kinds.cudaDevAttrComputeCapabilityMinor)
        return OK, self.capability[wanted.index(attr)]

    def cudaMemGetInfo(self) -> Answer:
        if self.capability is None:
            return Error.cudaErrorNoDevice, None, None
        return OK, self.memory - self._used(), self.memory

    def _used(self) -> int:
        return sum(len(b.data) for b in self.blocks if b.live and b.kind == "device")

    def cudaMalloc(self, size: Any) -> Answer:
        self.calls.append("cudaMalloc")
        if self._capturing():
            return Error.cudaErrorStreamCaptureUnsupported, None
        if self._used() + size > self.memory:
            return Error.cudaErrorMemoryAllocation, None
        block = Block(self._next, np.full(size, GARBAGE, np.uint8), "device")
        self._next += -(-(size + GAP) // GAP) * GAP
        self.blocks.append(block)
        return OK, block.start

    def cudaFree(self, devPtr: Any) -> Answer:
        return self._freed(devPtr, "device")

    def cudaHostAlloc(self, size: Any, flags: Any) -> Answer:
        self.calls.append("cudaHostAlloc")
        assert flags == 0
        data = np.full(size, GARBAGE, np.uint8)
        self.blocks.append(Block(data.ctypes.data, data, "pinned"))
        return OK, data.ctypes.data

    def cudaFreeHost(self, ptr: Any) -> Answer:
        return self._freed(ptr, "pinned")

    def _freed(self, address: Any, kind: Any) -> Answer:
        found = [b for b in self.blocks if b.start == address and b.kind == kind]
        if not found:
            raise MisuseError(f"{address:#x} is no address of {kind} memory")
        block = found[-1]
        if not block.live:
            raise MisuseError(f"{address:#x} is freed twice")
        for stream in self.streams.values():
            for work in stream.queue:
                if any(0 <= at - block.start < len(block.data) for at, _ in work.touches):
                    raise MisuseError(f"{address:#x} is freed while {work.label} waits")
        block.live = False
        block.data[:] = GARBAGE  # kept, so that nobody else gets the address
        return (OK,)

    # Copies.

    def cudaMemsetAsync(self, devPtr: Any, value: Any, count: Any, stream: Any) -> Answer:
        self.calls.append("cudaMemsetAsync")

        def run() -> None:
            self.find(devPtr, count, "device", "memset")[:] = value

        self.queue(stream, Work("memset", ((devPtr, count),), run))
        return (OK,)

    def cudaMemcpyAsync(self, dst: Any, src: Any, count: Any, kind: Any, stream: Any) -> Answer:
        return self._copied("cudaMemcpyAsync", (dst, count, src, count, count, 1), kind, stream)

    def cudaMemcpy2DAsync(
        self,
        dst: Any,
        dpitch: Any,
        src: Any,
        spitch: Any,
        width: Any,
        height: Any,
        kind: Any,
        stream: Any,
    ) -> Answer:
        if width > min(dpitch, spitch):
            raise MisuseError(f"rows of {width} bytes with pitches of {dpitch} and {spitch}")
        sizes = (dst, dpitch, src, spitch, width, height)
        return self._copied("cudaMemcpy2DAsync", sizes, kind, stream)

    def _copied(self, label: Any, sizes: Any, kind: Any, stream: Any) -> Answer:
        self.calls.append(label)
        dst, dpitch, src, spitch, width, height = map(int, sizes)
        source_kind, target_kind = {
            Kind.cudaMemcpyHostToDevice: ("pinned", "device"),
            Kind.cudaMemcpyDeviceToHost: ("device", "pinned"),
            Kind.cudaMemcpyDeviceToDevice: ("device", "device"),
        }[kind]
        if not width * height:
            return (OK,)
        reach = dpitch * (height - 1) + width, spitch * (height - 1) + width
        if dst < src + reach[1] and src < dst + reach[0]:
            raise MisuseError(f"{label}: source and target overlap")
        before = self.find(src, reach[1], source_kind, label)
        at_call = before.copy() if source_kind == "pinned" else None
        target = self.find(dst, reach[0], target_kind, label)
        if target_kind == "pinned":
            target[:] = STALE

        def run() -> None:
            source = self.find(src, reach[1], source_kind, label)
            target = self.find(dst, reach[0], target_kind, label)
            if at_call is not None and not np.array_equal(source, at_call):
                raise MisuseError(f"{label}: the host changed memory that was still to be copied")
            for row in range(height):
                target[row * dpitch : row * dpitch + width] = source[
                    row * spitch : row * spitch + width
                ]

        self.queue(stream, Work(label, ((src, reach[1]), (dst, reach[0])), run))
        return (OK,)

    # Streams and graphs.

    def cudaStreamCreateWithFlags(self, flags: Any) -> Answer:
        assert flags == self.cudaStreamNonBlocking
        handle = 0x5EED + len(self.calls)
        self.calls.append("cudaStreamCreateWithFlags")
        self.streams[handle] = Stream()
        return OK, runtime.cudaStream_t(handle)

    def cudaStreamDestroy(self, stream: Any) -> Answer:
        if self.stream(stream).queue:
            raise MisuseError("a stream is destroyed with work that nobody waited for")
        del self.streams[int(stream)]
        return (OK,)

    def cudaStreamSynchronize(self, stream: Any) -> Answer:
        self.calls.append("cudaStreamSynchronize")
        found = self.stream(stream)
        if self._capturing():
            return (Error.cudaErrorStreamCaptureUnsupported,)
        while found.queue:
            found.queue.pop(0).run()
        failure, self.failure = self.failure, OK
        return (failure,)

    def cudaStreamBeginCapture(self, stream: Any, mode: Any) -> Answer:
        assert mode == self.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        found = self.stream(stream)
        if found.captured is not None:
            raise MisuseError("a stream is captured twice at once")
        found.captured, found.invalid = [], False
        return (OK,)

    def cudaStreamEndCapture(self, stream: Any) -> Answer:
        found = self.stream(stream)
        if found.captured is None:
            raise MisuseError("nothing is captured")
        work, found.captured = found.captured, None
        if found.invalid:
            return Error.cudaErrorStreamCaptureInvalidated, None
        self.graphs.append(Graph(tuple(work)))
        return OK, self.graphs[-1]

    def cudaGraphInstantiate(self, graph: Any, flags: Any) -> Answer:
        assert graph.live
        assert flags == 0
        self.executables.append(Graph(graph.work))
        return OK, self.executables[-1]

    def cudaGraphDestroy(self, graph: Any) -> Answer:
        assert graph.live
        graph.live, graph.work = False, ()
        return (OK,)

    def cudaGraphLaunch(self, graphExec: Any, stream: Any) -> Answer:
        self.calls.append("cudaGraphLaunch")
        if not graphExec.live:
            raise MisuseError("a graph is launched that was destroyed")
        for work in graphExec.work:
            self.queue(stream, work)
        return (OK,)

    def cudaGraphExecDestroy(self, graphExec: Any) -> Answer:
        if not graphExec.live:
            raise MisuseError("a graph is destroyed twice")
        graphExec.live, graphExec.work = False, ()
        return (OK,)

    def cudaGetLastError(self) -> Answer:
        return (OK,)
