"""ONNX Runtime on the GPU: its CUDA or TensorRT execution provider, bound to memory of ours."""

import os
from typing import Any

import onnxruntime

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines.base import plan_dtype, tensor_shape
from dlmc_runtime.engines.cuda import CudaDevice
from dlmc_runtime.engines.device import DeviceEngine
from dlmc_runtime.engines.device_cache import CacheMemory
from dlmc_runtime.engines.memory import NUMPY, Device
from dlmc_runtime.engines.onnxruntime import open_session
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import DataType, Profile, TensorSpec

_BFLOAT16 = 16  # what ONNX calls it; numpy has no name for it
PROVIDERS = {"cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}
"""What runs the graph first, by the name it has on the command line."""

_Key = tuple[Profile, CacheMemory]


class OnnxRuntimeCudaEngine(DeviceEngine):
    """A session whose inputs, outputs and caches are bound to addresses on a device.

    Args:
        bundle: the bundle.
        record: the engine's record; its ``execution_provider`` and ``cuda_graph`` are heeded.
        device: the first GPU if not given. On the host's memory the same code runs on the CPU.
    """

    def __init__(self, bundle: Bundle, record: EngineRecord, device: Device | None = None) -> None:
        self._session: onnxruntime.InferenceSession | None = None
        self._bindings: dict[_Key, Any] = {}
        self._cache_dtype = record.cache_dtype
        super().__init__(bundle, record, CudaDevice() if device is None else device)
        self._graphs = record.options.get("cuda_graph") == "on" and self._device.kind == "cuda"
        self._graph_ids = 0
        try:
            self._session = self._opened(bundle, record)
        except BaseException:
            self.close()
            raise

    def _opened(self, bundle: Bundle, record: EngineRecord) -> onnxruntime.InferenceSession:
        chosen = record.options.get("execution_provider", "cuda")
        if chosen not in PROVIDERS:
            raise EngineError(
                f"the engine's record names the execution provider {chosen!r}", "build it again"
            )
        providers = _settings(self._device, chosen, graphs=self._graphs)
        available = onnxruntime.get_available_providers()
        missing = [name for name, _ in providers if name not in available]
        first = providers[0][0]
        session = None
        if not missing:
            session = open_session(
                bundle, record.plan, record.files, record.cache_dtype, tuple(providers)
            )
        # Where a provider's libraries are missing, the CPU would run everything without a word.
        if session is None or session.get_providers()[0] != first:
            raise EngineError(
                f"ONNX Runtime {onnxruntime.__version__} has no working {missing or first}",
                "pip install 'onnxruntime-gpu[cuda,cudnn]' instead of onnxruntime",
            )
        return session

    def _run(self, profile: Profile, memory: CacheMemory) -> None:
        """Queue one run of the graph."""
        key = profile, memory
        if key not in self._bindings:
            self._bindings[key] = self._bound(profile, memory)
        binding, options = self._bindings[key]
        try:
            self._required().run_with_iobinding(binding, options)
        except Exception as error:  # onnxruntime's own classes share no base below Exception
            reason = str(error).splitlines()[0]
            raise EngineError(
                f"ONNX Runtime failed at {profile} ({reason})", "run dlmc validate"
            ) from error

    def _bound(self, profile: Profile, memory: CacheMemory) -> tuple[Any, Any]:
        """Bind every input and output to its address, and choose the CUDA graph of those."""
        binding, addresses = self._required().io_binding(), self._addresses(profile, memory)
        kind = self._device.kind
        for specs, bind in (
            (self.manifest.inputs, binding.bind_input),
            (self.manifest.outputs, binding.bind_output),
        ):
            for spec in specs:
                shape, dtype = (
                    tensor_shape(spec, profile, self.manifest.attention),
                    self._type(spec),
                )
                bind(spec.name, kind, 0, dtype, shape, addresses[spec.name])
        options = onnxruntime.RunOptions()
        if self._graphs:
            options.add_run_config_entry("gpu_graph_id", str(self._graph_ids))
            self._graph_ids += 1
        return binding, options

    def _type(self, spec: TensorSpec) -> Any:
        dtype: DataType = plan_dtype(spec, self._cache_dtype)
        return _BFLOAT16 if dtype == "bfloat16" else NUMPY[dtype]

    def _required(self) -> onnxruntime.InferenceSession:
        if self._session is None:
            raise EngineError("the engine was closed", "load the bundle again")
        return self._session

    def _forget(self, memory: CacheMemory) -> None:
        """Forget the bindings to the addresses in ``memory``."""
        self._bindings = {k: bound for k, bound in self._bindings.items() if k[1] is not memory}

    def _release(self) -> None:
        self._bindings.clear()
        self._session = None


def _settings(device: Device, chosen: str, *, graphs: bool) -> list[tuple[str, dict[str, str]]]:
    """Return the execution providers and their settings, the first choice first."""
    cpu: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
    if device.kind == "cpu":
        return [cpu]
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()  # CUDA's libraries, where pip installed them
    shared = {"device_id": "0", "user_compute_stream": str(device.stream)}
    cuda = {**shared, "use_tf32": "0", "enable_cuda_graph": str(int(graphs))}
    providers = [(PROVIDERS["cuda"], cuda), cpu]
    if chosen == "tensorrt":
        # It has no setting for TF32; the library under it reads this before it builds.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        # No engine cache: what lies there was never hashed.
        own = {**shared, "trt_engine_cache_enable": "0", "trt_cuda_graph_enable": str(int(graphs))}
        providers.insert(0, (PROVIDERS["tensorrt"], own))
    return providers
