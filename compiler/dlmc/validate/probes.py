"""Running a graph whose inner values are outputs, on the library of the engine in question."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc.validate.points import marked_name
from dlmc.validate.recording import Arrays
from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import narrow
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.errors import DlmcError, EngineError

Probe = Callable[[Arrays], Arrays]
"""Returns the values of all marked points, by point, for a graph's inputs; all in float32."""

_OPENERS: dict[str, tuple[str, str]] = {
    "onnxruntime-cpu": ("dlmc.validate.probes", "open_onnxruntime"),
    "openvino-cpu": ("dlmc.validate.probes", "open_openvino"),
    "tensorrt": ("dlmc.validate.tensorrt_probe", "open_tensorrt"),
    "tensorrt-rtx": ("dlmc.validate.tensorrt_probe", "open_tensorrt"),
}
_NOTHING_BUT_CRASHES = 4
_CACHE = "past_key_values."


@contextmanager
def open_probe(
    bundle: Bundle, path: Path, record: EngineRecord, points: Sequence[str]
) -> Iterator[Probe]:
    """Load an instrumented graph as the engine of ``record`` runs its own.

    Args:
        bundle: the bundle.
        path: the graph, see `points.instrument`.
        record: of the engine.
        points: what it answers.

    Raises:
        EngineError: there is no way into engines of this target, or the library refuses.
    """
    if record.target not in _OPENERS:
        raise EngineError(
            f"the layers of {record.target} engines cannot be read",
            f"they can for {', '.join(_OPENERS)}",
        )
    module, name = _OPENERS[record.target]
    opener = getattr(import_module(module), name)
    with ExitStack() as stack:
        with _refusals(record.target):
            run: Probe = stack.enter_context(opener(bundle, path, record, points))

        def probe(feeds: Arrays) -> Arrays:
            with _refusals(record.target):
                return run(feeds)

        yield probe


@contextmanager
def _refusals(target: str) -> Iterator[None]:
    """Turn what a library raises into one error."""
    try:
        yield
    except DlmcError:
        raise
    except Exception as error:  # libraries' own classes share no base below Exception
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EngineError(
            f"{target} cannot run the graph with its layers marked ({reason})",
            "validate with --no-layers",
        ) from error


@contextmanager
def session(path: Path) -> Iterator[Any]:
    """Yield Polygraphy's runner of a graph in ONNX Runtime."""
    import onnxruntime
    from polygraphy.backend.onnxrt import OnnxrtRunner
    from polygraphy.logger import G_LOGGER

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _NOTHING_BUT_CRASHES
    loaded = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL), OnnxrtRunner(loaded) as runner:
        yield runner


@contextmanager
def open_onnxruntime(
    bundle: Bundle, path: Path, record: EngineRecord, points: Sequence[str]
) -> Iterator[Probe]:
    """Run a graph in ONNX Runtime."""
    del bundle
    with session(path) as runner:

        def probe(feeds: Arrays) -> Arrays:
            found = runner.infer(narrowed(feeds, record))
            return {point: found[marked_name(point)] for point in points}

        yield probe


@contextmanager
def open_openvino(
    bundle: Bundle, path: Path, record: EngineRecord, points: Sequence[str]
) -> Iterator[Probe]:
    """Run a graph in OpenVINO, in the types that it states."""
    del bundle
    openvino = import_module("openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    types = {"float16": openvino.Type.f16, "bfloat16": openvino.Type.bf16}

    def tensor(array: NDArray[Any]) -> Any:
        bits = narrow(array, record.cache_dtype)
        if record.cache_dtype == "float32":
            return bits
        return openvino.Tensor(bits, openvino.Shape(bits.shape), types[record.cache_dtype])

    def probe(feeds: Arrays) -> Arrays:
        caches = {name: tensor(v) for name, v in feeds.items() if name.startswith(_CACHE)}
        found: Any = compiled({**feeds, **caches})
        return {point: np.array(found[marked_name(point)], np.float32) for point in points}

    yield probe


@contextmanager
def open_torch(engine: TorchEngine, points: Sequence[str]) -> Iterator[Probe]:
    """Read the modules of the torch reference while they run."""

    def probe(feeds: Arrays) -> Arrays:
        return engine.inner(feeds, points)

    yield probe


def narrowed(feeds: Arrays, record: EngineRecord) -> Arrays:
    """Return inputs with the cache in the type that a plan has it in; bfloat16 as bits."""
    past = {k: narrow(v, record.cache_dtype) for k, v in feeds.items() if k.startswith(_CACHE)}
    return {**feeds, **past}
