"""Samplers by name. The table can be read without importing a sampler."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlmc_runtime.samplers.base import Sampler
    from dlmc_runtime.samplers.config import SamplerConfig

SAMPLERS: dict[str, tuple[str, str]] = {
    "low_confidence": ("low_confidence", "LowConfidence"),
    "random": ("random", "Random"),
    "low_confidence_static": ("sdar", "LowConfidenceStatic"),
    "low_confidence_dynamic": ("sdar", "LowConfidenceDynamic"),
    "sequential": ("sdar", "Sequential"),
}

# Options of `SamplerConfig` that only some samplers heed.
HEEDED: dict[str, frozenset[str]] = {
    "low_confidence": frozenset({"threshold", "factor"}),
    "random": frozenset(),
    "low_confidence_static": frozenset(),
    "low_confidence_dynamic": frozenset({"threshold"}),
    "sequential": frozenset(),
}


def build(config: "SamplerConfig") -> "Sampler":
    """Return the sampler a configuration names."""
    module, attribute = SAMPLERS[config.name]
    sampler: Sampler = getattr(import_module(f"{__name__}.{module}"), attribute)(config)
    return sampler
