"""Samplers by name. The table can be read without importing a sampler."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlmc_runtime.samplers.base import Sampler
    from dlmc_runtime.samplers.config import SamplerConfig

SAMPLERS: tuple[str, ...] = (
    "low_confidence",
    "random",
    "origin",
    "maskgit_plus",
    "topk_margin",
    "entropy",
    "confidence_threshold",
    "low_confidence_static",
    "low_confidence_dynamic",
    "sequential",
    "entropy_bounded",
    "klass",
    "credit",
    "hierarchy",
    "remdm",
    "dus",
    "wino",
    "fixed",
    "confidence_threshold_ref",
    "confidence_threshold_bound",
    "cumulative_error",
    "autoregressive",
    "linear_speculation",
    "renoise",
    "token_editing",
    "levenshtein",
)
"""Every sampler; a sampler's module has its name, its class the name in capitalised words."""


def find(name: str) -> "type[Sampler]":
    """Return the class of a sampler in the table."""
    words = "".join(word.capitalize() for word in name.split("_"))
    found: type[Sampler] = getattr(import_module(f"{__name__}.{name}"), words)
    return found


def build(config: "SamplerConfig") -> "Sampler":
    """Return the sampler a configuration names."""
    return find(config.name)(config)
