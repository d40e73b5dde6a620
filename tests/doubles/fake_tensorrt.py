"""A double of the part of TensorRT that runs engines: `TensorRT` stands for the library.

Its plans hold an ONNX graph, which ONNX Runtime executes when the stream gets there, reading and
writing the memory of `fake_cuda` at the addresses that the context had when it was enqueued.
"""

import hashlib
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorrt_rtx as real
from fake_cuda import GARBAGE, Cuda, MisuseError, Work

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord, Requirements
from dlmc_runtime.engines.base import tensor_shape
from dlmc_runtime.record import FileRecord

SCRATCH = 4096
VERSION = "11.1.0.10"
_TYPES = {
    onnx.TensorProto.INT64: (real.DataType.INT64, np.int64),
    onnx.TensorProto.BOOL: (real.DataType.BOOL, np.bool_),
    onnx.TensorProto.FLOAT: (real.DataType.FLOAT, np.float32),
    onnx.TensorProto.FLOAT16: (real.DataType.HALF, np.float16),
}


def plan(graph: Path, manifest: Any, profiles: Any, version: str = VERSION) -> bytes:
    """Return a plan for ``profiles`` of an ONNX graph."""
    shapes = [
        {spec.name: tensor_shape(spec, profile) for spec in manifest.inputs} for profile in profiles
    ]
    header = json.dumps({"version": version, "profiles": shapes})
    model: bytes = onnx.load(graph).SerializeToString()
    return header.encode() + b"\n" + model


def write_engine(
    root: Path, target: str = "tensorrt", data: bytes | None = None, **changes: Any
) -> EngineRecord:
    """Write an engine for the profiles of a bundle, or one whose plan is ``data``.

    ``changes`` replaces fields of its record.
    """
    bundle = Bundle.open(root)
    manifest, name = bundle.manifest, f"engines/{target}/engine.plan"
    if data is None:
        data = plan(root / manifest.graph, manifest, changes.get("profiles", manifest.profiles))
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)
    fields = {
        "target": target,
        "device": "cuda",
        "precision": "float32",
        "profiles": manifest.profiles,
        "plan": name,
        "requires": Requirements(
            library="tensorrt", version=VERSION, match="exact", compute_capabilities=("sm89",)
        ),
        "manifest_sha256": bundle.manifest_sha256,
        "versions": {},
        "files": {name: FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())},
    }
    record = EngineRecord.model_validate({**fields, **changes})
    (root / name).with_name("engine.json").write_text(record.model_dump_json())
    return record


def install(monkeypatch: pytest.MonkeyPatch, trt: "TensorRT") -> None:
    """Let the runtime find the doubles where it looks for the real libraries."""
    monkeypatch.setattr("dlmc_runtime.engines.cuda._library", lambda: trt.cuda)
    monkeypatch.setattr("dlmc_runtime.engines.tensorrt.library", lambda target: trt)


class TensorRT:
    """The double.

    Args:
        cuda: whose memory its engines use.
        rtx: whether it is TensorRT for RTX.

    Attributes:
        live: engines, contexts and runtimes that somebody still holds.
        buffers: types of what plans were read from.
        capturable: whether its work can be captured.
    """

    ILogger = real.ILogger
    DataType = real.DataType
    ExecutionContextAllocationStrategy = real.ExecutionContextAllocationStrategy

    def __init__(self, cuda: Cuda, *, rtx: bool = False) -> None:
        self.__name__, self.__version__ = "tensorrt_rtx" if rtx else "tensorrt", VERSION
        self.cuda, self.rtx = cuda, rtx
        self.live: weakref.WeakSet[Any] = weakref.WeakSet()
        self.buffers: list[type] = []
        self.capturable = True
        self.lean: list[str] = []
        if rtx:
            self.DynamicShapesKernelSpecializationStrategy = (
                real.DynamicShapesKernelSpecializationStrategy
            )

    def Runtime(self, logger: Any) -> "Runtime":  # noqa: N802
        """Make a runtime, as the class of the real library."""
        return Runtime(self, logger)


class Runtime:
    def __init__(self, trt: TensorRT, logger: Any) -> None:
        self._trt, self._logger, self._lean = trt, logger, False
        trt.live.add(self)

    def load_runtime(self, path: str) -> "Runtime | None":
        self._trt.lean.append(path)
        self._lean = True
        return self

    def deserialize_cuda_engine(self, serialized_engine: Any) -> "ICudaEngine | None":
        self._trt.buffers.append(type(serialized_engine))
        header, _, graph = bytes(serialized_engine).partition(b"\n")
        try:
            record = json.loads(header)
        except ValueError:
            self._logger.log(real.ILogger.ERROR, "Error Code 1: the magic tag\ndoes not match")
            return None
        if record["version"] != self._trt.__version__ and not self._lean:
            self._logger.log(real.ILogger.ERROR, "Error Code 6: another version")
            return None
        return ICudaEngine(self._trt, self._logger, record["profiles"], graph)


class ICudaEngine:
    def __init__(self, trt: TensorRT, logger: Any, profiles: Any, graph: bytes) -> None:
        self.trt, self.logger, self.profiles = trt, logger, profiles
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        self.session = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )
        model = onnx.load_model_from_string(graph).graph
        self.inputs = {value.name: value for value in model.input}
        self.outputs = {value.name: value for value in model.output}
        self.num_io_tensors = len(self.inputs) + len(self.outputs)
        self.num_optimization_profiles = len(profiles)
        self.device_memory_size_v2 = SCRATCH
        trt.live.add(self)

    def _value(self, name: str) -> Any:
        return {**self.inputs, **self.outputs}[name]

    def numpy_type(self, name: str) -> Any:
        return _TYPES[self._value(name).type.tensor_type.elem_type][1]

    def get_tensor_name(self, index: int) -> str:
        return str([*self.inputs, *self.outputs][index])

    def get_tensor_dtype(self, name: str) -> Any:
        return _TYPES[self._value(name).type.tensor_type.elem_type][0]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        return [real.Dims(self.profiles[profile_index][name])] * 3

    def create_runtime_config(self) -> SimpleNamespace:
        assert self.trt.rtx
        config = SimpleNamespace(strategy=None, dynamic_shapes_kernel_specialization_strategy=None)

        def choose(strategy: Any) -> None:
            config.strategy = strategy

        config.set_execution_context_allocation_strategy = choose
        return config

    def create_execution_context(self, how: Any) -> "IExecutionContext":
        if self.trt.rtx:
            eager = real.DynamicShapesKernelSpecializationStrategy.EAGER
            assert how.dynamic_shapes_kernel_specialization_strategy == eager
            how = how.strategy
        assert how == real.ExecutionContextAllocationStrategy.USER_MANAGED
        return IExecutionContext(self)


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine, self._cuda = engine, engine.trt.cuda
        self._profile: dict[str, list[int]] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._scratch: tuple[int, int] | None = None
        self._unsettled = True  # what a first run does, and no capture may do
        engine.trt.live.add(self)

    def _no(self, reason: str) -> bool:
        self._engine.logger.log(real.ILogger.ERROR, f"Error Code 3: {reason}")
        return False

    def set_optimization_profile_async(self, profile_index: int, stream_handle: Any) -> bool:
        self._cuda.stream(stream_handle)
        if not 0 <= profile_index < self._engine.num_optimization_profiles:
            return self._no(f"there is no profile {profile_index}")
        self._profile = self._engine.profiles[profile_index]
        self._shapes, self._unsettled = {}, True
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        if self._profile is None or name not in self._profile:
            return self._no(f"no profile has a shape for {name}")
        if list(shape) != self._profile[name]:
            return self._no(f"{name} is {list(shape)}, the profile says {self._profile[name]}")
        self._shapes[name], self._unsettled = tuple(shape), True
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        if name not in {**self._engine.inputs, **self._engine.outputs}:
            return self._no(f"there is no tensor {name}")
        if memory % 256:
            return self._no(f"the address of {name} is not aligned")
        self._addresses[name] = memory
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        if size < self._engine.device_memory_size_v2:
            raise MisuseError(f"scratch memory of {size} bytes")
        self._cuda.find(memory, size, "device", "scratch memory")
        self._scratch = memory, size

    def execute_async_v3(self, stream_handle: Any) -> bool:
        engine, stream = self._engine, self._cuda.stream(stream_handle)
        missing = [name for name in engine.inputs if name not in self._shapes]
        missing += [n for n in (*engine.inputs, *engine.outputs) if not self._addresses.get(n)]
        if self._profile is None or missing or self._scratch is None:
            return self._no(f"not all is set: {missing[:1] or 'profile or scratch memory'}")
        if stream.captured is not None and (self._unsettled or not engine.trt.capturable):
            stream.invalid = True
            return self._no("the stream is captured")
        if stream.captured is None:
            self._unsettled = False
        addresses, shapes, scratch = dict(self._addresses), dict(self._shapes), self._scratch
        touches = [scratch]
        for name, shape in shapes.items():
            size = int(np.prod(shape)) * np.dtype(engine.numpy_type(name)).itemsize
            touches.append((addresses[name], size))
        if len({addresses[name] for name in addresses}) != len(addresses):
            raise MisuseError("two tensors lie at one address")

        def run() -> None:
            self._run(addresses, shapes, scratch)

        self._cuda.queue(stream_handle, Work("an engine", tuple(touches), run))
        return True

    def _run(self, addresses: Any, shapes: Any, scratch: tuple[int, int]) -> None:
        engine, find = self._engine, self._cuda.find
        ranges, feeds = [scratch], {}
        for name, shape in shapes.items():
            kind = np.dtype(engine.numpy_type(name))
            size = int(np.prod(shape)) * kind.itemsize
            ranges.append((addresses[name], size))
            data = find(addresses[name], size, "device", name)
            feeds[name] = data.copy().view(kind).reshape(shape)
        find(*scratch, "device", "scratch memory")[:] = GARBAGE
        answers = engine.session.run(list(engine.outputs), feeds)
        for name, answer in zip(engine.outputs, answers, strict=True):
            for start, length in ranges:
                if addresses[name] < start + length and start < addresses[name] + answer.nbytes:
                    raise MisuseError(f"{name} lies over something else")
            ranges.append((addresses[name], answer.nbytes))
            target = find(addresses[name], answer.nbytes, "device", name)
            target[:] = np.ascontiguousarray(answer).view(np.uint8).reshape(-1)
