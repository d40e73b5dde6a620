"""ONNX Runtime on the CPU."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import Cache, HostCache, cache_shapes
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines.base import Inputs, Outputs, Store, head_outputs, input_shapes, plan_dtype
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Model, Precision, Profile, TensorSpec

_NOTHING_BUT_CRASHES = 4  # errors come as exceptions, and need no second message on stderr
_TYPES = {
    "tensor(bool)": "bool",
    "tensor(int64)": "int64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
}


def open_session(
    bundle: Bundle,
    plan: str,
    files: Iterable[str] = (),
    cache_dtype: Precision = "float32",
    providers: Sequence[tuple[str, dict[str, str]]] = (("CPUExecutionProvider", {}),),
) -> onnxruntime.InferenceSession:
    """Open a session on a graph of the bundle.

    Args:
        bundle: the bundle.
        plan: the graph.
        files: what it may read besides the bundle's weights.
        cache_dtype: type of its caches.
        providers: what may run it and with which settings, the first choice first.

    Raises:
        BundleError: the graph reads files that the manifest does not list.
        EngineError: ONNX Runtime refuses the graph, or it lacks what the manifest promises.
    """
    bundle.check_graph(plan, files)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _NOTHING_BUT_CRASHES
    path = bundle.root / plan
    try:
        session = onnxruntime.InferenceSession(
            str(path),
            options,
            providers=list(providers),
            enable_fallback=0,  # there is nothing to fall back to, only a message on stdout
        )
        inputs, outputs = _signature(session.get_inputs()), _signature(session.get_outputs())
        caches = _cache_shapes(session.get_inputs())
    except Exception as error:  # onnxruntime's own classes share no base below Exception
        reason = str(error).splitlines()[0]
        raise EngineError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path} ({reason})",
            "export the bundle again",
        ) from error
    _compare(inputs, bundle.manifest.inputs, cache_dtype, path)
    _compare(outputs, bundle.manifest.outputs, cache_dtype, path)
    _compare_caches(caches, bundle.manifest.model, path)
    return session


def _signature(values: Sequence[onnxruntime.NodeArg]) -> list[tuple[str, str, int]]:
    """Return name, type and rank of a graph's inputs or outputs."""
    return [(arg.name, _TYPES.get(arg.type, arg.type), len(arg.shape)) for arg in values]


def _compare(
    found: list[tuple[str, str, int]],
    promised: Sequence[TensorSpec],
    cache_dtype: Precision,
    where: Path,
) -> None:
    """Check that a graph has the inputs or outputs its manifest lists."""
    wanted = [(spec.name, plan_dtype(spec, cache_dtype), len(spec.shape)) for spec in promised]
    if found != wanted:
        odd = sorted(set(found) ^ set(wanted)) or found
        raise EngineError(f"{where} and its manifest disagree about {odd[0][0]}", "export it again")


def _cache_shapes(values: Sequence[onnxruntime.NodeArg]) -> list[list[int | str]]:
    """Return heads and head size of every cache that a graph takes, in its order."""
    return [arg.shape[1::2] for arg in values if arg.name.startswith("past_key_values.")]


def _compare_caches(found: list[list[int | str]], model: Model, where: Path) -> None:
    """Check that a graph takes the caches that the runtime will allocate for ``model``."""
    fits = len(found) == 2 * model.num_hidden_layers  # which nobody has bounded before
    if not fits or found != [list(shape[1::2]) for shape in cache_shapes(model, 1, 1).values()]:
        raise EngineError(f"{where} and its manifest disagree about the cache", "export it again")


class OnnxRuntimeEngine:
    """A session whose caches live on the host."""

    def __init__(self, bundle: Bundle, record: EngineRecord) -> None:
        self.manifest = bundle.manifest
        self.profiles: tuple[Profile, ...] = record.profiles
        self._session: onnxruntime.InferenceSession | None = open_session(
            bundle, record.plan, record.files, record.cache_dtype
        )
        self._cache_dtype = record.cache_dtype
        self._answers = head_outputs(bundle.manifest)
        self._present = [
            spec.name for spec in bundle.manifest.outputs if spec.name.startswith("present.")
        ]

    def cache(self, batch: int, size: int) -> HostCache:
        """Allocate an empty cache for ``batch`` rows of ``size`` positions."""
        return HostCache(self.manifest.model, batch, size, self._cache_dtype)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate the input buffers of a profile."""
        return Inputs(profile, input_shapes(self.manifest, profile))

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser once, then write what ``stores`` names to the cache.

        Raises:
            EngineError: ONNX Runtime fails, or the engine was closed.
        """
        if self._session is None:
            raise EngineError("the engine was closed", "load the bundle again")
        if not isinstance(cache, HostCache):
            raise TypeError("the cache belongs to another engine")
        names = [*self._answers, *self._present] if stores else [*self._answers]
        try:
            answers: list[NDArray[Any]] = self._session.run(names, _feeds(inputs, cache))
        except Exception as error:  # onnxruntime's own classes share no base below Exception
            reason = str(error).splitlines()[0]
            raise EngineError(
                f"ONNX Runtime failed at {inputs.profile} ({reason})", "run dlmc validate"
            ) from error
        count = len(self._answers)
        head, present = answers[:count], answers[count:]
        if any(answer.shape[:2] != inputs.head_rows.shape for answer in head):
            raise EngineError(
                f"the graph answers other shapes than {inputs.profile}", "export the bundle again"
            )
        # The session's answers are arrays of their own: one that is all of a cache becomes it.
        whole = [Store(0, cache.size, 0)] == list(stores) and len(cache.filled) == 1
        if whole and cache.take(present):
            return Outputs(*head)
        for store in stores:
            cache.write(store.row, store.count, present, store.at)
        return Outputs(*head)

    def close(self) -> None:
        """Release the session; calling it again does nothing."""
        self._session = None


def _feeds(inputs: Inputs, cache: HostCache) -> dict[str, NDArray[Any]]:
    """Return what the graph is fed: all of the cache, or none where nobody sees any of it.

    A forward that renews an approximate cache, and the first of a prefill, would otherwise copy
    it and attend to twice as much for nothing.
    """
    feeds: dict[str, NDArray[Any]] = inputs.arrays()
    masks = {name: mask for name, mask in feeds.items() if name.endswith("attention_mask")}
    block = inputs.profile.block
    past = cache.front(inputs.profile.batch)
    if not cache.size or any(mask[..., :-block].any() for mask in masks.values()):
        return feeds | past
    own = {name: np.ascontiguousarray(mask[..., -block:]) for name, mask in masks.items()}
    return feeds | own | {name: array[:, :, :0] for name, array in past.items()}
