"""TensorRT, and TensorRT for RTX, which has the same interface under another name."""

import mmap
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines.base import plan_dtype, tensor_shape
from dlmc_runtime.engines.cuda import CudaDevice
from dlmc_runtime.engines.device import DeviceEngine
from dlmc_runtime.engines.device_cache import CacheMemory
from dlmc_runtime.engines.memory import Recording
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Profile

NAMES = {
    "int64": "INT64",
    "bool": "BOOL",
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
}
"""What TensorRT calls the types of inputs and outputs."""

_SHOWN = 300  # characters of its messages that an error repeats


def library(target: str) -> Any:
    """Import the library that builds and runs a target's engines.

    Raises:
        EngineError: it is not installed, or does not load.
    """
    try:
        if target == "tensorrt-rtx":
            import tensorrt_rtx

            return tensorrt_rtx
        import tensorrt
    except (ImportError, OSError) as error:  # OSError: one of its own libraries is missing
        raise EngineError(
            f"{target} does not load here ({error})", f"pip install 'dlmc[{target}]'"
        ) from None
    else:
        return tensorrt


class Log:
    """What a library says while it works.

    Attributes:
        errors: its last errors.
        listen: is told severity and text of everything.
    """

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)
        self.listen: Callable[[str, str], None] | None = None

    def first(self) -> str:
        """Return the first of the errors since the last call, as one line."""
        text = " ".join(self.errors[0].split()) if self.errors else "it says no more"
        self.errors.clear()
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@cache
def logger(trt: Any) -> tuple[Any, Log]:
    """Return the process's logger, since the library keeps the first it is given, and its log."""
    log = Log()

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                log.errors.append(message)
            if log.listen is not None:
                log.listen(severity.name, message)

    return Logger(), log


class TensorRTEngine(DeviceEngine):
    """A plan on the first GPU: one execution context a profile, one CUDA graph a cache.

    The contexts share their scratch memory, as forwards never overlap.
    """

    def __init__(self, bundle: Bundle, record: EngineRecord) -> None:
        self._trt = library(record.target)
        self._logger, self._log = logger(self._trt)
        self._engine: Any = None
        self._contexts: dict[Profile, Any] = {}
        self._bound: dict[Profile, CacheMemory] = {}
        self._recordings: dict[tuple[Profile, CacheMemory], Recording] = {}
        self._settled: set[Profile] = set()
        self._capturable = True
        super().__init__(bundle, record, CudaDevice())
        try:
            self._engine = self._deserialized(bundle.root / record.plan, record)
            _compare(self._trt, self._engine, bundle, record)
            self._scratch_size = int(self._engine.device_memory_size_v2)
            self._scratch = self._region(self._scratch_size)
        except BaseException:
            self.close()
            raise

    def _deserialized(self, path: Path, record: EngineRecord) -> Any:
        """Load a plan, which has been hashed, without a copy of it in host memory."""
        runtime = self._trt.Runtime(self._logger)
        if record.requires.match != "exact":
            self._load_lean_runtime(runtime, record)
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as p:
                engine = runtime.deserialize_cuda_engine(p)
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} cannot be read ({error})", "build it again") from error
        if engine is None:
            raise self._failed(f"cannot load {path}", f"build it here for {record.target}")
        return engine

    def _load_lean_runtime(self, runtime: Any, record: EngineRecord) -> None:
        """Load the runtime that a plan of another version needs; plans carry no host code."""
        wanted = record.requires.version
        if self._trt.__version__ == wanted:
            return
        distribution = "tensorrt_lean_cu13_libs"
        try:
            parts = files(distribution) or []
        except PackageNotFoundError:
            parts = []
        found = [part for part in parts if part.name.startswith("libnvinfer_lean.so")]
        if not found or runtime.load_runtime(str(found[0].locate())) is None:
            raise EngineError(
                f"the engine was built with TensorRT {wanted}, here is {self._trt.__version__}",
                f"pip install tensorrt-lean=={wanted}, or build it again",
            )

    def _failed(self, what: str, hint: str = "run dlmc validate") -> EngineError:
        """Return the error for a call that the library answered with no."""
        name = f"{self._trt.__name__} {self._trt.__version__}"
        return EngineError(f"{name} {what} ({self._log.first()})", hint)

    def _context(self, profile: Profile) -> Any:
        """Return a profile's execution context, made at first use."""
        if profile not in self._contexts:
            context = self._new_context()
            if context is None:
                raise self._failed(f"cannot run {profile}")
            index, stream = self.profiles.index(profile), self._device.stream
            if not context.set_optimization_profile_async(index, stream):
                raise self._failed(f"does not take profile {profile}")
            for spec in self.manifest.inputs:
                if not context.set_input_shape(
                    spec.name, tensor_shape(spec, profile, self.manifest.attention)
                ):
                    raise self._failed(f"does not take {spec.name} of {profile}")
            context.set_device_memory(self._scratch, self._scratch_size)
            self._contexts[profile] = context
        return self._contexts[profile]

    def _new_context(self) -> Any:
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        kernels = getattr(self._trt, "DynamicShapesKernelSpecializationStrategy", None)
        if kernels is None:
            return self._engine.create_execution_context(strategy)
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        # A kernel that is compiled later would be missing from the graph that is captured now.
        config.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
        return self._engine.create_execution_context(config)

    def _run(self, profile: Profile, memory: CacheMemory) -> None:
        """Queue one run: a profile's first directly, the others as a CUDA graph of their cache."""
        recording = self._recordings.get((profile, memory))
        if recording is not None:
            recording.replay()
            return
        if self._bound.get(profile) is not memory:
            self._bind(profile, memory)
        # What a context sets up in its first run, it must not set up while a graph is captured.
        if profile in self._settled and self._record(profile, memory):
            self._recordings[profile, memory].replay()
        else:
            self._execute(profile)
            self._settled.add(profile)

    def _record(self, profile: Profile, memory: CacheMemory) -> bool:
        """Capture a run, and return whether that was possible; if not, it is not tried again."""
        if self._capturable:
            try:
                work = partial(self._execute, profile)
                self._recordings[profile, memory] = self._device.record(work)
            except (EngineError, MemoryError):
                self._capturable = False
                self._log.errors.clear()
        return self._capturable

    def _bind(self, profile: Profile, memory: CacheMemory) -> None:
        context = self._context(profile)
        for name, address in self._addresses(profile, memory).items():
            if not context.set_tensor_address(name, address):
                raise self._failed(f"does not take the address of {name}")
        self._bound[profile] = memory

    def _execute(self, profile: Profile) -> None:
        if not self._contexts[profile].execute_async_v3(self._device.stream):
            raise self._failed(f"failed at {profile}")

    def _forget(self, memory: CacheMemory) -> None:
        """Release the graphs that were captured with the addresses in ``memory``."""
        for key in [key for key in self._recordings if key[1] is memory]:
            self._recordings.pop(key).release()
        self._bound = {k: bound for k, bound in self._bound.items() if bound is not memory}

    def _release(self) -> None:
        with suppress(EngineError):  # what failed before, and was told
            self._device.synchronize()
            while self._recordings:
                self._recordings.popitem()[1].release()
        self._recordings.clear()
        self._contexts.clear()
        self._engine = None


def _compare(trt: Any, engine: Any, bundle: Bundle, record: EngineRecord) -> None:
    """Check that a plan has the inputs, outputs and profiles that its record promises."""
    manifest = bundle.manifest
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    specs = {spec.name: spec for spec in (*manifest.inputs, *manifest.outputs)}
    odd = sorted(set(names) ^ set(specs))
    for name, spec in specs.items():
        if odd:
            break
        dtype = getattr(trt.DataType, NAMES[plan_dtype(spec, record.cache_dtype)])
        if engine.get_tensor_dtype(name) != dtype:
            odd.append(name)
    if odd:
        raise EngineError(f"{record.plan} and its manifest disagree about {odd[0]}", "build again")
    if engine.num_optimization_profiles != len(record.profiles):
        raise EngineError(f"{record.plan} and its record disagree about profiles", "build again")
    for index, profile in enumerate(record.profiles):
        for spec in manifest.inputs:
            shapes = engine.get_tensor_profile_shape(spec.name, index)
            wanted = tensor_shape(spec, profile, manifest.attention)
            if any(tuple(shape) != wanted for shape in shapes):
                raise EngineError(
                    f"{record.plan} and its record disagree about {spec.name} of {profile}",
                    "build again",
                )
