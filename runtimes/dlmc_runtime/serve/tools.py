"""Tools: which functions an answer may call, which it must, and whether a call is a good one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import Field
from referencing import Registry
from referencing.exceptions import Unresolvable

from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.fields import Body
from dlmc_runtime.serve.messages import Name
from dlmc_runtime.serve.parsers.deltas import Call, Content, Delta

MAX_TOOLS = 128
MAX_DESCRIPTION = 1 << 16
# Python's regular expressions can take forever; what a schema is enforced with cannot.
_SLOW = ("pattern", "patternProperties")


class Function(Body):
    """A function that the model may call.

    Attributes:
        parameters: a JSON schema of an object; anything goes without one.
        strict: whether only calls that the schema accepts are reported as calls.
    """

    name: Name
    description: str | None = Field(None, max_length=MAX_DESCRIPTION)
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; all of them are functions."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Body):
    """The name of a function."""

    name: Name


class ChosenTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | ChosenTool


@dataclass(frozen=True)
class Toolbox:
    """The tools of a request.

    Attributes:
        tools: all that the model is told about.
        callable: those it may call, by name.
        required: whether it must call one.
        several: whether it may call more than one.
    """

    tools: Sequence[Tool] = ()
    callable: Mapping[str, Function] = field(default_factory=dict)
    required: bool = False
    several: bool = True

    @property
    def names(self) -> frozenset[str]:
        """The names of the functions that may be called."""
        return frozenset(self.callable)

    def declared(self) -> list[dict[str, Any]] | None:
        """Return the tools as chat templates read them."""
        found = [tool.model_dump(exclude_none=True) for tool in self.tools]
        for tool in found:
            tool["function"].pop("strict", None)
            tool["function"].setdefault("parameters", {"type": "object", "properties": {}})
        return found or None


def toolbox(
    tools: Sequence[Tool] | None, choice: ToolChoice | None, *, several: bool | None
) -> Toolbox:
    """Return what a request says about tools.

    Raises:
        FieldError: a name is there twice, a choice is of no tool, or a schema is none.
    """
    given = tools or ()
    by_name = {tool.function.name: tool.function for tool in given}
    if len(by_name) < len(given):
        raise FieldError("tools", "two functions have the same name", "give each its own")
    if not given and choice not in (None, "none", "auto"):
        raise FieldError("tool_choice", "there are no tools to choose from", "give tools")
    if not given and several is not None:
        raise FieldError("parallel_tool_calls", "there are no tools to call", "give tools")
    required = choice == "required" or isinstance(choice, ChosenTool)
    for index, tool in enumerate(given):
        _check(tool.function, f"tools.{index}.function", required=required)
    if isinstance(choice, ChosenTool):
        name = choice.function.name
        if name not in by_name:
            raise FieldError("tool_choice", f"no tool is called {name}", "name one of tools")
        by_name = {name: by_name[name]}
    if choice == "none":
        by_name = {}
    return Toolbox(given, by_name, required, several is not False)


def _check(function: Function, where: str, *, required: bool) -> None:
    if function.parameters is None or not function.strict or required:
        return  # what is required is compiled, which says what is wrong with it
    try:
        Draft202012Validator.check_schema(function.parameters)
    except (SchemaError, RecursionError) as error:
        reason = error.message if isinstance(error, SchemaError) else "it is nested too deeply"
        raise FieldError(f"{where}.parameters", reason[:200], "give a JSON schema") from None
    if _holds(function.parameters, _SLOW):
        raise FieldError(
            f"{where}.strict",
            f"{' and '.join(_SLOW)} are not checked in calls that the model may leave out",
            "use tool_choice required, or leave strict out",
        )


def _holds(value: Any, names: Sequence[str]) -> bool:
    if isinstance(value, dict):
        return any(name in value for name in names) or _holds(list(value.values()), names)
    return isinstance(value, list) and any(_holds(one, names) for one in value)


class Gate:
    """Lets through the calls of an answer that may be reported, and everything else.

    A call of a strict function whose arguments its schema does not accept is content. Where one
    call is all that is wanted, whatever follows the first is left out.
    """

    def __init__(self, tools: Toolbox) -> None:
        self.calls = 0
        self._tools = tools
        self._validators = {
            name: Draft202012Validator(function.parameters, registry=Registry())
            for name, function in tools.callable.items()
            if function.strict and function.parameters is not None
        }

    def let(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return what is to be reported of deltas."""
        found: list[Delta] = []
        for delta in deltas:
            if self.calls and not self._tools.several:
                break
            one = delta
            if isinstance(delta, Call) and not self._accepts(delta):
                one = Content(json.dumps({"name": delta.name, "arguments": delta.arguments}))
            self.calls += isinstance(one, Call)
            found.append(one)
        return found

    def _accepts(self, call: Call) -> bool:
        validator = self._validators.get(call.name)
        if validator is None:
            return True
        try:
            validator.validate(json.loads(call.arguments))
        except (ValidationError, Unresolvable, RecursionError):
            return False
        return True
