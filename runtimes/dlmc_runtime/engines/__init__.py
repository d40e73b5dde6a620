"""Engines by target. The table can be read without importing an engine library."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from dlmc_runtime import preflight
from dlmc_runtime.errors import EngineError, UsageError

if TYPE_CHECKING:
    from dlmc_runtime.bundle import Bundle
    from dlmc_runtime.engine_record import EngineRecord
    from dlmc_runtime.engines.base import Engine


@dataclass(frozen=True)
class EngineKind:
    """Where the code for a target's engines lies, and what it needs.

    Attributes:
        module: the file in this package.
        attribute: the class in it.
        distribution: what pip installs to run such engines.
        gpu: whether they need one.
    """

    module: str
    attribute: str
    distribution: str
    gpu: bool = False


ENGINES: dict[str, EngineKind] = {
    "onnxruntime-cpu": EngineKind("onnxruntime", "OnnxRuntimeEngine", "onnxruntime"),
    "onnxruntime-cuda": EngineKind(
        "onnxruntime_cuda", "OnnxRuntimeCudaEngine", "onnxruntime-gpu", gpu=True
    ),
    "tensorrt": EngineKind("tensorrt", "TensorRTEngine", "tensorrt", gpu=True),
    "tensorrt-rtx": EngineKind("tensorrt", "TensorRTEngine", "tensorrt-rtx-cu13", gpu=True),
    "openvino-cpu": EngineKind("openvino", "OpenVinoEngine", "openvino"),
}


def load(bundle: "Bundle", name: str) -> "Engine":
    """Load an engine of a bundle.

    Args:
        bundle: a bundle that was opened.
        name: a target, where one engine was built for it, or the full name of an engine.

    Raises:
        UsageError: nothing is called that.
        BundleError: it was not built, or its record does not fit the bundle.
        EngineError: it does not run on this machine, or does not load.
    """
    record = find(bundle, name)
    preflight.check(record)
    bundle.check_engine_files(record)
    return make(bundle, record)


def find(bundle: "Bundle", name: str) -> "EngineRecord":
    """Return the record of an engine that this version of dlmc could run; raises as `load`."""
    built = bundle.engine_names()
    if name not in ENGINES and name not in built:
        known = ", ".join(built or ENGINES)
        raise UsageError(f"no target is called {name!r}", f"choose one of {known}")
    bundle.require_weights()
    record = bundle.engine(name)
    if record.target not in ENGINES:
        raise EngineError(
            f"this version of dlmc runs no engines for {record.target}",
            f"build one for {', '.join(ENGINES)}",
        )
    return record


def make(bundle: "Bundle", record: "EngineRecord") -> "Engine":
    """Load an engine whose record and files have been checked; raises `EngineError`."""
    kind = ENGINES[record.target]
    engine: Engine = getattr(import_module(f"{__name__}.{kind.module}"), kind.attribute)(
        bundle, record
    )
    return engine
