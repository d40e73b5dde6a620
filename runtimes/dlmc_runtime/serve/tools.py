"""Tools: which functions an answer may call, which it must, and whether a call is a good one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from dlmc_runtime.serve.arguments import Check
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.fields import Body
from dlmc_runtime.serve.messages import Name
from dlmc_runtime.serve.parsers.deltas import Call, Content, Delta

MAX_TOOLS = 128
MAX_REQUIRED = 4  # calls of an answer that must call, where it may call several
MAX_DESCRIPTION = 1 << 16


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
        several: whether more than one call is reported.
        most: how many calls it makes at most where it must make one.
        checks: what the calls of strict functions must pass, by name.
    """

    tools: Sequence[Tool] = ()
    callable: Mapping[str, Function] = field(default_factory=dict)
    required: bool = False
    several: bool = True
    most: int = 1
    checks: Mapping[str, Check] = field(default_factory=dict)

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
    if isinstance(choice, ChosenTool):
        name = choice.function.name
        if name not in by_name:
            raise FieldError("tool_choice", f"no tool is called {name}", "name one of tools")
        by_name = {name: by_name[name]}
    if choice == "none":
        by_name = {}
    most = MAX_REQUIRED if several and choice == "required" else 1
    box = Toolbox(given, by_name, required, several is not False, most)
    return replace(box, checks=_checks(box))


def _checks(box: Toolbox) -> dict[str, Check]:
    """Return what checks the calls of strict functions that the model may leave out.

    Raises:
        FieldError: a schema is none, or cannot be checked.
    """
    if box.required:  # what is required is compiled, and so enforced
        return {}
    found: dict[str, Check] = {}
    for index, function in enumerate(tool.function for tool in box.tools):
        if not function.strict or function.parameters is None or function.name not in box.names:
            continue
        try:
            found[function.name] = Check(function.parameters)
        except ValueError as error:
            raise FieldError(
                f"tools.{index}.function.strict",
                f"calls of {function.name} cannot be checked against its parameters: {error}",
                "use tool_choice required, which enforces them, or leave strict out",
            ) from None
    return found


class Gate:
    """Lets through the calls of an answer that may be reported, and everything else.

    A call of a strict function whose arguments its schema does not accept is content. Where one
    call is all that is wanted, whatever follows the first is left out.
    """

    def __init__(self, tools: Toolbox) -> None:
        self.calls = 0
        self._tools = tools

    @property
    def checks(self) -> bool:
        """Whether calls are checked, which takes a while."""
        return bool(self._tools.checks)

    def let(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return what is to be reported of deltas."""
        found: list[Delta] = []
        for delta in deltas:
            if self.calls and not self._tools.several:
                break
            one = delta
            check = self._tools.checks.get(delta.name) if isinstance(delta, Call) else None
            if isinstance(delta, Call) and check and not check.accepts(delta.arguments):
                one = Content(f"{delta.name}({delta.arguments})")
            self.calls += isinstance(one, Call)
            found.append(one)
        return found
