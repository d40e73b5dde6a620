"""Runtime for compiled diffusion language models: engine to text, without torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dlmc_runtime.errors import DlmcError
from dlmc_runtime.version import __version__

if TYPE_CHECKING:
    from dlmc_runtime.events import Committed, Denoised, Event, Finished, Result
    from dlmc_runtime.generate import Generator
    from dlmc_runtime.infill import Hole
    from dlmc_runtime.row import Request
    from dlmc_runtime.samplers.config import SamplerConfig

# Loaded at first use: importing the package must cost next to nothing.
_LAZY = {
    "Generator": "generate",
    "Hole": "infill",
    "Request": "row",
    "SamplerConfig": "samplers.config",
    "Committed": "events",
    "Denoised": "events",
    "Event": "events",
    "Finished": "events",
    "Result": "events",
}

__all__ = [
    "Committed",
    "Denoised",
    "DlmcError",
    "Event",
    "Finished",
    "Generator",
    "Hole",
    "Request",
    "Result",
    "SamplerConfig",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
