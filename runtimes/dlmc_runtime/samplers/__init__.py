"""Samplers by name. The table can be read without importing a sampler."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlmc_runtime.samplers.base import Sampler
    from dlmc_runtime.samplers.config import SamplerConfig

SAMPLERS: dict[str, tuple[str, str]] = {
    "low_confidence": ("low_confidence", "LowConfidence"),
    "random": ("random", "Random"),
    "origin": ("dream", "Origin"),
    "maskgit_plus": ("dream", "MaskgitPlus"),
    "topk_margin": ("dream", "TopkMargin"),
    "entropy": ("dream", "Entropy"),
    "confidence_threshold": ("dream", "ConfidenceThreshold"),
    "low_confidence_static": ("sdar", "LowConfidenceStatic"),
    "low_confidence_dynamic": ("sdar", "LowConfidenceDynamic"),
    "sequential": ("sdar", "Sequential"),
    "entropy_bounded": ("entropy_bounded", "EntropyBounded"),
    "klass": ("klass", "Klass"),
    "credit": ("credit", "Credit"),
    "hierarchy": ("hierarchy", "Hierarchy"),
    "remdm": ("remdm", "Remdm"),
    "dus": ("dus", "Dus"),
    "wino": ("wino", "Wino"),
    "fixed": ("nemotron", "Fixed"),
    "confidence_threshold_ref": ("nemotron", "Reference"),
    "confidence_threshold_bound": ("nemotron", "Bound"),
    "cumulative_error": ("nemotron", "CumulativeError"),
    "autoregressive": ("speculation", "Autoregressive"),
    "linear_speculation": ("speculation", "LinearSpeculation"),
}


def find(name: str) -> "type[Sampler]":
    """Return the class of a sampler in the table."""
    module, attribute = SAMPLERS[name]
    found: type[Sampler] = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found


def build(config: "SamplerConfig") -> "Sampler":
    """Return the sampler a configuration names."""
    return find(config.name)(config)
