"""OpenVINO on the CPU."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import Cache, HostCache, cache_shapes
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines.base import Inputs, Outputs, Store, head_outputs, input_shapes, plan_dtype
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Manifest, Profile, TensorSpec

MODEL_CACHE = "model_cache"
"""Option of a record: keep compiled models in the user's cache folder."""

_TYPES = {"boolean": "bool", "i64": "int64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
# Element types of arrays that numpy has no type for.
_AS_BITS = {"bfloat16": openvino.Type.bf16}
# Marks a Cast of a stored weight as what OpenVINO calls decompression: the weight stays in its
# stored type, half the memory, and is widened inside the matrix product, exactly.
_KEEP_COMPRESSED = ("decompression_0", "disable_constant_folding_0")


def cache_folder() -> Path:
    """Return where compiled models are kept, by the XDG convention."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dlmc" / "openvino"


def read_model(bundle: Bundle, record: EngineRecord) -> openvino.Model:
    """Read the plan of an engine.

    Raises:
        BundleError: the graph reads files that are not listed.
        EngineError: OpenVINO refuses the graph, or it lacks what the manifest promises.
    """
    bundle.check_graph(record.plan, record.files)
    path = bundle.root / record.plan
    try:
        model = openvino.Core().read_model(str(path))
    except RuntimeError as error:
        raise _refusal(f"cannot load {path}", error) from error
    for found, specs in (
        (model.inputs, bundle.manifest.inputs),
        (model.outputs, bundle.manifest.outputs),
    ):
        _compare(found, specs, record, path)
    _compare_caches(model, bundle.manifest, path)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Convert" and _is_stored(node.input_value(0)):
            for mark in _KEEP_COMPRESSED:
                node.get_rt_info()[mark] = ""
    return model


def _is_stored(value: openvino.Output) -> bool:
    kind = value.get_element_type().to_string()
    return value.get_node().get_type_name() == "Constant" and kind in ("bf16", "f16")


def _compare(
    found: Sequence[openvino.Output],
    promised: Sequence[TensorSpec],
    record: EngineRecord,
    where: Path,
) -> None:
    """Check that a graph has the inputs or outputs its manifest lists, in whatever order."""
    ours = {
        (
            one.any_name,
            _TYPES.get(one.element_type.to_string()),
            one.partial_shape.rank.get_length(),
        )
        for one in found
    }
    wanted = {
        (spec.name, plan_dtype(spec, record.cache_dtype), len(spec.shape)) for spec in promised
    }
    if ours != wanted:
        odd = sorted(str(name) for name, *_ in ours ^ wanted)
        raise EngineError(f"{where} and its manifest disagree about {odd[0]}", "export it again")


def _dtype(value: openvino.Output) -> str | None:
    return _TYPES.get(value.element_type.to_string())


def _compare_caches(model: openvino.Model, manifest: Manifest, where: Path) -> None:
    """Check that a graph takes the caches that the runtime will allocate."""
    caches = [one for one in model.inputs if one.any_name.startswith("past_key_values.")]
    sizes = {
        one.any_name: [one.partial_shape[axis].to_string() for axis in (1, 3)] for one in caches
    }
    promised = manifest.model
    fits = len(sizes) == 2 * promised.num_hidden_layers  # which nobody has bounded before
    if not fits or sizes != {
        name: [str(shape[1]), str(shape[3])] for name, shape in cache_shapes(promised, 1, 1).items()
    }:
        raise EngineError(f"{where} and its manifest disagree about the cache", "export it again")


def _refusal(what: str, error: Exception) -> EngineError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if not line.startswith("Exception")), what)
    version = openvino.__version__.split("-")[0]
    return EngineError(f"OpenVINO {version} {what} ({reason})", "build the engine again")


class OpenVinoEngine:
    """A compiled model whose caches live on the host.

    One model serves all profiles, so that there is one copy of the weights; a single one pins its
    shapes, which lets the library plan memory ahead. It computes in the
    types the graph states: the hint is float32 even where the graph is bfloat16, because another
    hint would also lower what the graph keeps in float32.
    """

    def __init__(self, bundle: Bundle, record: EngineRecord) -> None:
        self.manifest = bundle.manifest
        self.profiles: tuple[Profile, ...] = record.profiles
        self._cache_dtype = record.cache_dtype
        model = read_model(bundle, record)
        if len(record.profiles) == 1:
            shapes = input_shapes(self.manifest, record.profiles[0])
            model.reshape({name: list(shape) for name, shape in shapes.items()})
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        if record.options.get(MODEL_CACHE) == "true":
            settings["CACHE_DIR"] = str(cache_folder())
        try:
            compiled = openvino.Core().compile_model(model, "CPU", settings)
            self._requests = {
                profile: _Request(compiled.create_infer_request(), self.manifest, self._cache_dtype)
                for profile in self.profiles
            }
        except RuntimeError as error:
            path = bundle.root / record.plan
            raise _refusal(f"cannot compile {path}", error) from error

    def cache(self, batch: int, size: int) -> HostCache:
        """Allocate an empty cache for ``batch`` rows of ``size`` positions."""
        return HostCache(self.manifest.model, batch, size, self._cache_dtype)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate the input buffers of a profile."""
        return Inputs(profile, input_shapes(self.manifest, profile))

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser once, then write what ``stores`` names to the cache.

        Raises:
            EngineError: OpenVINO fails, or the engine was closed.
        """
        if not self._requests:
            raise EngineError("the engine was closed", "load the bundle again")
        if not isinstance(cache, HostCache):
            raise TypeError("the cache belongs to another engine")
        request = self._requests[inputs.profile]
        try:
            head, present = request.run(inputs, cache, stored=bool(stores))
        except RuntimeError as error:
            raise _refusal(f"failed at {inputs.profile}", error) from error
        if any(answer.shape[:2] != inputs.head_rows.shape for answer in head):
            raise EngineError(
                f"the graph answers other shapes than {inputs.profile}", "export the bundle again"
            )
        for store in stores:
            cache.write(store.row, store.count, present, store.at)
        return Outputs(*head)

    def close(self) -> None:
        """Release the model; calling it again does nothing."""
        self._requests = {}


class _Request:
    """One profile's inference request, which reads input buffers and caches where they lie."""

    def __init__(
        self, request: openvino.InferRequest, manifest: Manifest, cache_dtype: str
    ) -> None:
        self._request, self._cache_type = request, _AS_BITS.get(cache_dtype)
        self._answers = head_outputs(manifest)
        self._present = [spec.name for spec in manifest.outputs if spec.name.startswith("present.")]
        # A tensor over an array does not keep the array alive: what is bound is kept here.
        self._bound: tuple[Inputs, HostCache] | None = None

    def run(
        self, inputs: Inputs, cache: HostCache, *, stored: bool
    ) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """Return the head's outputs, and where ``stored`` the block's keys and values."""
        if self._bound is None or self._bound[0] is not inputs or self._bound[1] is not cache:
            for name, array in inputs.arrays().items():
                self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
            for name, array in cache.front(inputs.profile.batch).items():
                self._request.set_tensor(name, self._cache_tensor(array))
            self._bound = (inputs, cache)
        self._request.infer()
        # Copied, because the next forward writes to the same memory.
        head = [np.array(self._request.get_tensor(name).data) for name in self._answers]
        return head, [self._read(name) for name in self._present] if stored else []

    def _cache_tensor(self, array: NDArray[Any]) -> openvino.Tensor:
        if self._cache_type is None:
            return openvino.Tensor(array, shared_memory=True)
        return openvino.Tensor(array, openvino.Shape(array.shape), self._cache_type)

    def _read(self, name: str) -> NDArray[Any]:
        tensor = self._request.get_tensor(name)
        data: NDArray[Any] = tensor.data
        if self._cache_type is None:
            return data
        return data.view(np.uint16).reshape(tuple(tensor.shape))
