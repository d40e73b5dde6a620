"""Calls of tools written as JSON: ``{"name": …, "arguments": {…}}``, or a list of those."""

import json
import re
from typing import Any, NoReturn

from dlmc_runtime.serve.parsers.deltas import Call

# Models trained on one format or another call the arguments so.
_ARGUMENTS = ("arguments", "parameters")
_QUOTES = re.compile(r'\\.|"', re.DOTALL)


def read(text: str) -> list[Call] | None:
    """Return the calls that ``text`` is, None where it is something else."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        calls = [_call(one) for one in (value if isinstance(value, list) else [value])]
    except (ValueError, RecursionError):
        return None
    return calls or None


def closes(text: str) -> bool:
    """Return whether ``text`` ends outside of a JSON string, so that a marker there is one."""
    quotes = [found for found in _QUOTES.findall(text) if found == '"']
    return len(quotes) % 2 == 0


def written(arguments: dict[str, Any]) -> str:
    """Return arguments as JSON text.

    Raises:
        ValueError: a number in them is none that JSON can hold.
    """
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _call(value: object) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call is an object with a name")
    arguments: Any = next((value[name] for name in _ARGUMENTS if name in value), {})
    if isinstance(arguments, str):  # JSON within JSON, as OpenAI's API has it
        arguments = json.loads(arguments, parse_constant=_refuse)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return Call(value["name"], written(arguments))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
