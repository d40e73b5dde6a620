"""CUDA, through cuda-python: memory, a stream and recorded graphs of the first GPU."""

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.errors import EngineError

_NO_MEMORY = "cudaErrorMemoryAllocation"


def _library() -> Any:
    """Return the bindings of the CUDA runtime; raises `EngineError` where there are none."""
    try:
        from cuda.bindings import runtime
    except ImportError:
        raise EngineError("cuda-python is not installed", "pip install 'dlmc[cuda]'") from None
    return runtime


def _call(cuda: Any, name: str, *arguments: object) -> Any:
    """Call a function of CUDA and return its result, None where it has none.

    Raises:
        MemoryError: CUDA has too little of it.
        EngineError: CUDA refuses or failed, now or in work that was queued before.
    """
    code, *results = getattr(cuda, name)(*arguments)
    if int(code):
        label = getattr(code, "name", str(code))
        if label == _NO_MEMORY:
            raise MemoryError(f"{name} ({label})")
        raise EngineError(
            f"CUDA failed at {name} ({label})", "nvidia-smi shows what driver and GPU are there"
        )
    return results[0] if results else None


def compute_capability() -> str | None:
    """Return the first GPU's, such as ``sm89``; None where no GPU answers."""
    try:
        cuda = _library()
        if not _call(cuda, "cudaGetDeviceCount"):
            return None
        kinds = cuda.cudaDeviceAttr
        major = _call(cuda, "cudaDeviceGetAttribute", kinds.cudaDevAttrComputeCapabilityMajor, 0)
        minor = _call(cuda, "cudaDeviceGetAttribute", kinds.cudaDevAttrComputeCapabilityMinor, 0)
    except (EngineError, MemoryError, RuntimeError):  # RuntimeError: a library of CUDA is broken
        return None
    return f"sm{major}{minor}"


def free_memory() -> int | None:
    """Return the free bytes of the first GPU; None where no GPU answers."""
    try:
        cuda = _library()
        code, free, _ = cuda.cudaMemGetInfo()
    except (EngineError, RuntimeError):
        return None
    return None if int(code) else int(free)


class CudaGraph:
    """Work that was captured from a stream. It keeps the addresses it was captured with."""

    def __init__(self, cuda: Any, executable: Any, stream: int) -> None:
        self._cuda, self._executable, self._stream = cuda, executable, stream

    def replay(self) -> None:
        """Queue the work."""
        _call(self._cuda, "cudaGraphLaunch", self._executable, self._stream)

    def release(self) -> None:
        """Give up the recording."""
        _call(self._cuda, "cudaGraphExecDestroy", self._executable)


class CudaDevice:
    """The first GPU: memory, and one stream that everything is queued on.

    Raises:
        EngineError: there is no GPU, or its driver does not fit.
    """

    kind = "cuda"

    def __init__(self) -> None:
        self._cuda = _library()
        self._owned: set[int] = set()
        _call(self._cuda, "cudaSetDevice", 0)
        self._stream: Any = _call(
            self._cuda, "cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking
        )
        self.stream = int(self._stream)
        kinds = self._cuda.cudaMemcpyKind
        self._to_device = kinds.cudaMemcpyHostToDevice
        self._to_host = kinds.cudaMemcpyDeviceToHost
        self._within = kinds.cudaMemcpyDeviceToDevice

    def allocate(self, size: int) -> int:
        """Return the address of ``size`` new bytes; raises `MemoryError`."""
        address = int(_call(self._cuda, "cudaMalloc", max(1, size)))
        self._owned.add(address)
        return address

    def free(self, address: int) -> None:
        """Return memory to the GPU."""
        self._owned.remove(address)
        _call(self._cuda, "cudaFree", address)

    def staging(self, size: int) -> NDArray[np.uint8]:
        """Return ``size`` zeroed bytes of pinned memory, which are freed with the array."""
        address = int(_call(self._cuda, "cudaHostAlloc", max(1, size), 0))
        memory = (ctypes.c_uint8 * size).from_address(address)
        weakref.finalize(memory, self._cuda.cudaFreeHost, address)
        array = np.frombuffer(memoryview(memory), np.uint8)
        array[:] = 0
        return array

    def zero(self, address: int, size: int) -> None:
        """Set ``size`` bytes to zero."""
        _call(self._cuda, "cudaMemsetAsync", address, 0, size, self.stream)

    def upload(self, address: int, source: NDArray[np.uint8]) -> None:
        """Copy ``source``, which `staging` returned, to the GPU."""
        self._copy(address, source.ctypes.data, source.nbytes, self._to_device)

    def download(self, target: NDArray[np.uint8], address: int) -> None:
        """Copy from the GPU into ``target``, which `staging` returned."""
        self._copy(target.ctypes.data, address, target.nbytes, self._to_host)

    def _copy(self, target: int, source: int, size: int, kind: Any) -> None:
        _call(self._cuda, "cudaMemcpyAsync", target, source, size, kind, self.stream)

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
        places = (target, target_pitch, source, source_pitch, width, height)
        _call(self._cuda, "cudaMemcpy2DAsync", *places, self._within, self.stream)

    def record(self, work: Callable[[], None]) -> CudaGraph:
        """Capture what ``work`` queues on the stream instead of queueing it.

        Raises:
            EngineError: something in it cannot be captured.
        """
        cuda = self._cuda
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        _call(cuda, "cudaStreamBeginCapture", self.stream, mode)
        try:
            work()
        except BaseException:
            cuda.cudaStreamEndCapture(self.stream)
            cuda.cudaGetLastError()  # a failed capture must not be blamed on what comes next
            raise
        try:
            graph = _call(cuda, "cudaStreamEndCapture", self.stream)
        except EngineError:
            cuda.cudaGetLastError()
            raise
        try:
            executable = _call(cuda, "cudaGraphInstantiate", graph, 0)
        finally:
            cuda.cudaGraphDestroy(graph)
        return CudaGraph(cuda, executable, self.stream)

    def synchronize(self) -> None:
        """Wait until all work is done; raises `EngineError` where some of it failed."""
        _call(self._cuda, "cudaStreamSynchronize", self.stream)

    def close(self) -> None:
        """Return everything that was allocated; calling it again does nothing."""
        if self._stream is None:
            return
        stream, self._stream = self._stream, None
        self._cuda.cudaStreamSynchronize(stream)  # what it answers was told, or comes too late
        while self._owned:
            self._cuda.cudaFree(self._owned.pop())
        self._cuda.cudaStreamDestroy(stream)
