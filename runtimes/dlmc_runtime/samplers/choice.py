"""Another sampler, or other options of the bundle's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlmc_runtime import legal, samplers
from dlmc_runtime.samplers.config import SamplerConfig


def choose(default: SamplerConfig, name: str | None, given: Mapping[str, Any]) -> SamplerConfig:
    """Return the bundle's sampler with what a caller changes.

    Another sampler starts from its own defaults. Steps, threshold and factor are three ways to set
    the pace of LLaDA's sampler: one that is given replaces the bundle's.

    Args:
        default: the bundle's.
        name: another sampler; None for the bundle's.
        given: options by name; None leaves one as it is.

    Raises:
        UsageError: the sampler heeds no such option, or a value is illegal.
    """
    if name is not None and name != default.name:
        default = SamplerConfig(name=name)
    paces = {key for key in ("steps", "threshold", "factor") if given.get(key) is not None}
    if paces and "factor" in samplers.find(default.name).heeds:
        default = replace(default, steps=None, threshold=None, factor=None)
    config = default.updated(**given)
    legal.check_heeded(config)
    return config
