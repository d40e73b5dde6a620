"""``reasoning_effort``: how much work a model puts into an answer.

Every sampler has options that set its pace. A level multiplies the pace of the sampler as it is
configured: by 4 for ``instant``, by 2 for ``low``, by 1 for ``medium``, by a half for ``high``.
What that means depends on the option, see `CHANGES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from dlmc_runtime import samplers
from dlmc_runtime.manifest import Attention
from dlmc_runtime.samplers.config import SamplerConfig

Level = Literal["instant", "low", "medium", "high"]
LEVELS: tuple[Level, ...] = get_args(Level)

PACES: Mapping[Level, float] = {"instant": 4.0, "low": 2.0, "medium": 1.0, "high": 0.5}
"""How many times its usual pace a sampler goes at."""

_SUREST = 0.95  # what a sampler of one position a forward counts as, where it is to go faster


def _doubt(value: float, pace: float) -> float:
    """Return the threshold that bears ``pace`` times the doubt, but at least half of it."""
    return max(1.0 - (1.0 - value) * pace, value / 2)


def _times(value: float, pace: float) -> float:
    return value * pace


def _count(value: float, pace: float) -> int:
    return max(round(value * pace), 1)


def _patience(value: float, pace: float) -> int:
    """Return how many steps must agree: one more where there is time."""
    return int(value) + (pace < 1)


CHANGES: Mapping[str, Callable[[float, float], float]] = {
    "threshold": _doubt,
    "low_threshold": _doubt,
    "min_threshold": _doubt,
    "factor": _times,
    "gamma": _times,
    "entropy_bound": _times,
    "confidence_threshold": _times,
    "stability_threshold": _patience,
    "most": _count,
    "least": _count,
}
"""What becomes of an option, given its value and the pace."""

_RANKED = ("threshold", "factor")
_SCHEDULED = ("steps",)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "low_confidence": _RANKED,
    "maskgit_plus": _RANKED,
    "topk_margin": _RANKED,
    "entropy": _RANKED,
    "credit": _RANKED,
    "random": _SCHEDULED,
    "origin": _SCHEDULED,
    "low_confidence_static": _SCHEDULED,
    "sequential": _SCHEDULED,
    "remdm": _SCHEDULED,
    "confidence_threshold": ("threshold",),
    "low_confidence_dynamic": ("threshold",),
    "klass": ("threshold",),
    "wino": ("threshold",),
    "cumulative_error": ("threshold",),
    "levenshtein": ("threshold",),
    "hierarchy": ("threshold", "low_threshold"),
    "confidence_threshold_ref": ("threshold", "factor"),
    "confidence_threshold_bound": ("threshold", "min_threshold"),
    "entropy_bounded": ("gamma",),
    "fixed": ("threshold", "most"),
    "token_editing": ("threshold", "least"),
    "renoise": ("entropy_bound", "confidence_threshold", "stability_threshold"),
    # Their forwards depend on nothing that could be asked for without changing what they are.
    "dus": (),
    "autoregressive": (),
    "linear_speculation": (),
}
"""The options that set the pace of each sampler."""

_MAY_TAKE_LONGER = ("origin", "remdm")  # than one forward a position, and gain from it


def preset(config: SamplerConfig, level: Level, attention: Attention, answer: int) -> SamplerConfig:
    """Return a sampler that goes at the pace of a level.

    Args:
        config: the sampler as the bundle or the request has it, which is ``medium``.
        level: of effort.
        attention: of the model.
        answer: most tokens to generate.
    """
    pace = PACES[level]
    if pace == 1:
        return config
    changes: dict[str, Any] = {
        name: CHANGES[name](value, pace)
        for name in OPTIONS[config.name]
        if name in CHANGES and (value := _value(config, name)) is not None
    }
    if OPTIONS[config.name] in (_RANKED, _SCHEDULED) and not changes:
        positions = min(config.block_length or attention.block_length, answer)
        changes = _scheduled(config, pace, positions)
    return replace(config, **changes)


def _value(config: SamplerConfig, name: str) -> float | None:
    """Return what an option is set to, or its sampler's default; None where it is off."""
    given: float | None = getattr(config, name)
    if given is not None:
        return given
    other = {"threshold": config.factor, "factor": config.threshold}.get(name)
    if other is not None and OPTIONS[config.name] is _RANKED:  # they exclude each other
        return None
    return samplers.find(config.name).defaults.get(name)


def _scheduled(config: SamplerConfig, pace: float, positions: int) -> dict[str, Any]:
    """Return the changes of a sampler that a number of steps paces."""
    if config.steps is None and OPTIONS[config.name] is _RANKED:
        # One position a forward: it cannot be slower, and is faster where it is sure.
        return {"threshold": _doubt(_SUREST, pace)} if pace > 1 else {}
    steps = config.steps or positions
    most = positions * (2 if config.name in _MAY_TAKE_LONGER else 1)
    return {"steps": max(min(round(steps / pace), max(most, steps)), 1)}


_SWITCHES: Mapping[str, Callable[[Level], object]] = {
    "enable_thinking": lambda level: level != "instant",
    "thinking": lambda level: level != "instant",
    "reasoning_effort": lambda level: "low" if level == "instant" else level,
}


def variables(level: Level, reads: frozenset[str]) -> dict[str, object]:
    """Return what a chat template is told about a level.

    Args:
        level: of effort; ``instant`` turns thinking off, the others turn it on.
        reads: the variables that the template looks at.
    """
    return {name: switch(level) for name, switch in _SWITCHES.items() if name in reads}
