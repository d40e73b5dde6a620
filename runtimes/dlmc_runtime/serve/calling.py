"""Calls that must be made: the model's own way of writing them, as a constraint.

A constraint is of text, and special tokens are none. So where a model's markers are special tokens
(DiffusionGemma), or its calls are no JSON, a call that must be made is a list of JSON objects.
"""

import re
from collections.abc import Mapping
from typing import Any

from dlmc_runtime.constraints import Constraint, schema
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.models import Served
from dlmc_runtime.serve.parsers.formats import BARE, Format
from dlmc_runtime.serve.parsers.parser import Calls
from dlmc_runtime.serve.tools import Function, Toolbox

_META = re.compile(r"[\\.+*?()|\[\]{}^$]")


def form(style: Format) -> Calls:
    """Return how calls that must be made are written."""
    calls = style.calls
    special = any(marker in style.specials for marker in (calls.opening, calls.closing))
    return BARE if special or calls.frame is None else calls


def constraint(served: Served, style: Format, box: Toolbox) -> Constraint:
    """Return the constraint of answers that are calls of tools and nothing else.

    Raises:
        FieldError: the parameters of a tool cannot be enforced, or not all of them together.
    """
    begin, between, end = form(style).frame or ("", "", "")
    any_call = "|".join(_call(function, box) for function in box.callable.values())
    more = f"(?:{_literal(between)}(?:{any_call})){{0,{box.most - 1}}}" if box.most > 1 else ""
    text = f"{_literal(begin)}(?:{any_call}){more}{_literal(end)}"
    try:
        return served.generator.constraints.expression(text)
    except DlmcError as error:
        hint = "use simpler parameters, or tool_choice auto"
        raise FieldError("tools", f"calls cannot be enforced: {error.message}", hint) from error


def _call(function: Function, box: Toolbox) -> str:
    index = next(i for i, tool in enumerate(box.tools) if tool.function is function)
    try:
        arguments = _arguments(function.parameters)
    except DlmcError as error:
        param = f"tools.{index}.function.parameters"
        raise FieldError(param, error.message, error.hint) from error
    head = _literal(f'{{"name": "{function.name}", "arguments": ')
    return f"{head}{arguments}{_literal('}')}"


def _arguments(parameters: Mapping[str, Any] | None) -> str:
    """Return a Rust expression of the JSON texts of objects that a schema accepts."""
    if not parameters:
        return schema.any_object()
    given = parameters.get("type", "object")
    if given != "object":
        problem = "arguments are an object, and the schema says something else"
        raise FieldError(None, problem, 'give {"type": "object", …}')
    return schema.expression({"type": "object", **parameters})


def _literal(text: str) -> str:
    """Return a Rust expression of one text."""
    return _META.sub(lambda found: f"\\{found[0]}", text)
