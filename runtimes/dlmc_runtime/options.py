"""What a request may say, and whether its values are of the right kind."""

from collections.abc import Sequence
from typing import Any, TypedDict, TypeGuard, cast

import numpy as np

from dlmc_runtime.constraints import Constraint
from dlmc_runtime.errors import RequestError, UsageError
from dlmc_runtime.samplers.config import SamplerConfig

Prompt = str | Sequence[int]


class Options(TypedDict, total=False):
    """Keyword arguments of `Generator.request`, and so of `generate` and `stream`."""

    max_new_tokens: int | None
    sampler: SamplerConfig | None
    seed: int
    stop: Sequence[str]
    ignore_eos: bool
    early_exit: bool
    keep_cache: bool
    skip_special_tokens: bool
    logprobs: int | None
    constraint: Constraint | None


class InfillOptions(TypedDict, total=False):
    """Keyword arguments of `Generator.infill_request`, and so of `infill`."""

    max_new_tokens: int | None
    sampler: SamplerConfig | None
    seed: int
    logprobs: int | None


def is_prompt(prompt: object) -> TypeGuard[Prompt]:
    """Return whether something is one prompt, and not several."""
    if isinstance(prompt, str):
        return True
    several = isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes)
    return several and all(map(_is_id, cast("Sequence[object]", prompt)))


def _is_id(token: object) -> bool:
    return isinstance(token, int | np.integer) and not isinstance(token, bool)


def is_some_text(value: object) -> bool:
    """Return whether something is a text of at least one character."""
    return isinstance(value, str) and value != ""


def whole_number(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least ``least``.

    Raises:
        UsageError: it is none; the message names it.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        raise UsageError(f"{name} is {value!r}", f"it must be a whole number of at least {least}")
    return int(value)


def check_constraint(constraint: Constraint, count: int, *, stop: bool, ignore_eos: bool) -> None:
    """Refuse what a text that must match something rules out.

    Args:
        constraint: what it must match.
        count: most tokens it may have.
        stop: whether there are texts that end it.
        ignore_eos: whether stop ids do not end it.

    Raises:
        RequestError: the hint says what to do.
    """
    if stop:
        raise RequestError(
            "a text cannot be cut at stop strings and match a constraint", "leave stop out"
        )
    if ignore_eos:
        raise RequestError(
            "a text that must match a constraint ends with a stop token", "leave ignore_eos out"
        )
    if constraint.shortest > count:
        raise RequestError(
            f"the shortest text that meets the constraint has {constraint.shortest} tokens, the "
            f"answer may have {count}",
            f"allow it {constraint.shortest} at least",
        )
