"""Running an instrumented graph in TensorRT: built here, for the profiles of the engine."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc.validate.points import marked_name
from dlmc.validate.probes import Probe, narrowed
from dlmc.validate.recording import Arrays
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines.base import tensor_shape
from dlmc_runtime.engines.cuda import CudaDevice
from dlmc_runtime.engines.tensorrt import Log, library, logger
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Profile

Shapes = dict[str, tuple[int, ...]]


@contextmanager
def open_tensorrt(
    bundle: Bundle, path: Path, record: EngineRecord, points: Sequence[str]
) -> Iterator[Probe]:
    """Build a graph as the target does, and run it on the first GPU.

    Raises:
        EngineError: there is no GPU, or the library refuses the graph.
    """
    trt = library(record.target)
    device = CudaDevice()
    try:
        plan, shapes = build_network(trt, bundle, path, record.profiles)
        runner = Runner(trt, plan, shapes, device)

        def probe(feeds: Arrays) -> Arrays:
            found = runner.run(narrowed(feeds, record))
            return {point: found[marked_name(point)] for point in points}

        yield probe
    finally:
        device.close()


def build_network(
    trt: Any,
    bundle: Bundle,
    path: Path,
    profiles: Sequence[Profile],
    compute_capability: str | None = None,
) -> tuple[bytes, list[Shapes]]:
    """Build a plan of an instrumented graph, whose points the parser marks as outputs.

    Args:
        trt: the library.
        bundle: the bundle, whose graph it was.
        path: the graph.
        profiles: fixed shapes, as the engine has them.
        compute_capability: a GPU to build for, where the library can without one.

    Returns:
        The plan, and the shape of every input in every profile.

    Raises:
        EngineError: the library refuses the graph.
    """
    from dlmc.targets.tensorrt import allow_plain_attention

    own_logger, log = logger(trt)
    builder = trt.Builder(own_logger)
    strong = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if strong is None else 1 << int(strong))
    parser = trt.OnnxParser(network, own_logger)
    if not parser.parse_from_file(str(path)):
        raise _refused(trt, log, "cannot read the instrumented graph")
    allow_plain_attention(trt, network)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    if compute_capability is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, compute_capability.upper()), 0)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    shapes = [_shapes(bundle, inputs, profile) for profile in profiles]
    for one in shapes:
        fixed = builder.create_optimization_profile()
        for name, shape in one.items():
            fixed.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(fixed)
    made = builder.build_serialized_network(network, config)
    if made is None:
        raise _refused(trt, log, "cannot build the instrumented graph")
    return bytes(made), shapes


def _refused(trt: Any, log: Log, what: str) -> EngineError:
    name = f"{trt.__name__} {trt.__version__}"
    return EngineError(f"{name} {what} ({log.first()})", "validate with --no-layers")


def _shapes(bundle: Bundle, inputs: Sequence[Any], profile: Profile) -> Shapes:
    """Return the shape of every input; what is given instead of a layer is [B,T,hidden]."""
    specs = {spec.name: spec for spec in bundle.manifest.inputs}
    found: Shapes = {}
    attention = bundle.manifest.attention
    for tensor in inputs:
        if tensor.name in specs:
            found[tensor.name] = tensor_shape(specs[tensor.name], profile, attention)
        else:
            sizes = tuple(tensor.shape)
            found[tensor.name] = (profile.batch, profile.block, *sizes[2:]) if sizes else ()
    return found


class Runner:
    """A plan whose inputs and outputs are all copied, forward by forward.

    Args:
        trt: the library.
        plan: what it has built.
        shapes: of every input in every profile.
        device: the GPU.
    """

    def __init__(self, trt: Any, plan: bytes, shapes: Sequence[Shapes], device: CudaDevice) -> None:
        own_logger, self._log = logger(trt)
        self._trt, self._device, self._shapes = trt, device, shapes
        self._engine = trt.Runtime(own_logger).deserialize_cuda_engine(plan)
        if self._engine is None:
            raise _refused(trt, self._log, "cannot load the instrumented graph")
        count = self._engine.num_io_tensors
        self._names = [str(self._engine.get_tensor_name(index)) for index in range(count)]
        self._context = self._engine.create_execution_context(self._strategy())
        size = int(self._engine.device_memory_size_v2)
        self._context.set_device_memory(device.allocate(size), size)
        self._places: dict[tuple[int, str], int] = {}

    def _strategy(self) -> Any:
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        kernels = getattr(self._trt, "DynamicShapesKernelSpecializationStrategy", None)
        if kernels is None:
            return strategy
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        config.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
        return config

    def run(self, feeds: Arrays) -> Arrays:
        """Return all float32 outputs for inputs that have the shapes of a profile.

        Raises:
            EngineError: no profile has these shapes, or the library fails.
        """
        shapes = {name: array.shape for name, array in feeds.items()}
        index = next((i for i, one in enumerate(self._shapes) if one == shapes), None)
        stream = self._device.stream
        if index is None or not self._context.set_optimization_profile_async(index, stream):
            raise _refused(self._trt, self._log, "has no profile of these shapes")
        staged = [self._give(index, name, array) for name, array in feeds.items()]
        answers = {name: self._expect(index, name) for name in self._names if name not in feeds}
        if not self._context.execute_async_v3(stream):
            raise _refused(self._trt, self._log, "failed at the instrumented graph")
        for place, memory, _ in answers.values():
            self._device.download(memory, place)
        self._device.synchronize()
        staged.clear()  # the stream has read them
        floats = self._trt.DataType.FLOAT
        return {
            name: memory.view(np.float32).reshape(shape).copy()
            for name, (_, memory, shape) in answers.items()
            if self._engine.get_tensor_dtype(name) == floats
        }

    def _give(self, profile: int, name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
        """Queue the copy of an input; return the memory it is copied from."""
        if not self._context.set_input_shape(name, array.shape):
            raise _refused(self._trt, self._log, f"does not take {name}")
        memory = self._device.staging(array.nbytes)
        memory[:] = np.frombuffer(array.tobytes(), np.uint8)
        self._device.upload(self._place(profile, name, array.nbytes), memory)
        return memory

    def _expect(self, profile: int, name: str) -> tuple[int, NDArray[np.uint8], tuple[int, ...]]:
        """Return where an output will lie, memory to copy it to, and its shape."""
        shape = tuple(self._context.get_tensor_shape(name))
        size = math.prod(shape) * self._engine.get_tensor_dtype(name).itemsize
        return self._place(profile, name, size), self._device.staging(size), shape

    def _place(self, profile: int, name: str, size: int) -> int:
        """Return where a tensor of a profile lies, and tell the context."""
        if (profile, name) not in self._places:
            self._places[profile, name] = self._device.allocate(size)
        place = self._places[profile, name]
        if not self._context.set_tensor_address(name, place):
            raise _refused(self._trt, self._log, f"does not take the address of {name}")
        return place
