"""What a request may ask of a sampler."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from dlmc_runtime.errors import UsageError


@dataclass(frozen=True)
class SamplerConfig:
    """Parameters of one row's sampler. Rows of a batch may differ in every one of them.

    Attributes:
        name: a registered sampler, see `dlmc_runtime.samplers.SAMPLERS`.
        steps: forwards per block; None means one per position of the block. (LLaDA's own
            ``steps`` counts the forwards of all blocks together.)
        threshold: commit every position at least this sure; None for a fixed number of steps.
        factor: Fast-dLLM's bound on parallel commits (arXiv 2505.22618); excludes ``threshold``.
        temperature: 0 takes the best token, otherwise tokens are drawn.
        top_k: draw among this many best tokens; 0 means all.
        top_p: draw among the best tokens that hold this much probability.
        block_length: positions denoised together; None means the bundle's own. Only families
            that see the whole sequence may change it.
        defer_ids: predictions of these ids are committed last (LLaDA's
            ``confidence_eos_eot_inf``).
    """

    name: str = "low_confidence"
    steps: int | None = None
    threshold: float | None = None
    factor: float | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    block_length: int | None = None
    defer_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        from dlmc_runtime.samplers import SAMPLERS

        if self.name not in SAMPLERS:
            known = ", ".join(SAMPLERS)
            raise UsageError(f"no sampler is called {self.name!r}", f"choose one of {known}")
        for name, legal, wanted in _RULES:
            value = getattr(self, name)
            if value is not None and not legal(value):
                raise UsageError(f"{name} is {value!r}", f"it must be {wanted}")
        if self.threshold is not None and self.factor is not None:
            raise UsageError("threshold and factor exclude each other", "give only one of them")

    def updated(self, /, **changes: Any) -> "SamplerConfig":
        """Return a copy with every change that is not None.

        Raises:
            UsageError: a change names no parameter, or its value is illegal.
        """
        known = {field.name for field in fields(self)}
        for name in changes.keys() - known:
            raise UsageError(f"samplers have no parameter {name!r}", f"known: {sorted(known)}")
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


# Between these temperatures float32 neither rounds confidences away nor draws suppressed tokens.
_COLDEST, _HOTTEST = 1e-3, 1e3

_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("steps", lambda v: _whole(v) and v >= 1, "a whole number of at least 1"),
    ("threshold", lambda v: _real(v) and 0 < v <= 1, "above 0 and at most 1"),
    ("factor", lambda v: _real(v) and v >= 0, "a number of at least 0"),
    (
        "temperature",
        lambda v: _real(v) and (v == 0 or _COLDEST <= v <= _HOTTEST),
        f"0, or {_COLDEST:g} to {_HOTTEST:g}",
    ),
    ("top_k", lambda v: _whole(v) and v >= 0, "a whole number of at least 0"),
    ("top_p", lambda v: _real(v) and 0 < v <= 1, "above 0 and at most 1"),
    ("block_length", lambda v: _whole(v) and v >= 1, "a whole number of at least 1"),
    ("defer_ids", lambda v: isinstance(v, tuple) and all(map(_whole, v)), "a tuple of token ids"),
)
