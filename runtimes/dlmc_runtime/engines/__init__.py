"""Engines by target. The table can be read without importing an engine library."""

from importlib import import_module
from typing import TYPE_CHECKING

from dlmc_runtime.errors import UsageError

if TYPE_CHECKING:
    from dlmc_runtime.bundle import Bundle
    from dlmc_runtime.engines.base import Engine

ENGINES: dict[str, tuple[str, str]] = {
    "onnxruntime-cpu": ("onnxruntime", "OnnxRuntimeEngine"),
}


def load(bundle: "Bundle", target: str) -> "Engine":
    """Load the engine that was built for ``target``.

    Raises:
        UsageError: no such target.
        BundleError: it was not built, or its record does not fit the bundle.
        EngineError: it does not load here.
    """
    if target not in ENGINES:
        raise UsageError(f"no target is called {target!r}", f"choose one of {', '.join(ENGINES)}")
    module, attribute = ENGINES[target]
    kind = getattr(import_module(f"{__name__}.{module}"), attribute)
    bundle.require_weights()
    engine: Engine = kind(bundle, bundle.engine(target))
    return engine
