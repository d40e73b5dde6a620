import pytest
from pydantic import TypeAdapter

from dlmc_runtime.serve import tools
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.parsers.deltas import Call, Content, Reasoning
from dlmc_runtime.serve.tools import Gate, Tool

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"type": "function", "function": {"name": "g"}}


def tool(name, **fields):
    return Tool.model_validate({"type": "function", "function": {"name": name, **fields}})


def box(*given, choice=None, several=None):
    read = TypeAdapter(tools.ToolChoice | None).validate_python(choice)
    return tools.toolbox(given, read, several=several)


def test_a_choice_says_what_may_be_called():
    f, g = tool("f"), tool("g")
    assert box(f, g).names == {"f", "g"}
    assert box(f, g, choice="none").names == set()
    assert box(f, g, choice=NAMED).names == {"g"}
    assert not box(f, g, choice="auto").required
    assert box(f, g, choice="required").required
    assert box(f, choice="required", several=True).most == tools.MAX_REQUIRED
    assert box(f, g, choice=NAMED, several=True).most == 1
    assert box(f, choice="required").most == 1
    assert len(box(f, g, choice="none").declared()) == 2
    assert box().declared() is None


def test_a_template_sees_tools_without_what_is_for_the_server():
    (shown,) = box(tool("f", strict=True, description="d")).declared()
    nothing = {"type": "object", "properties": {}}
    assert shown["function"] == {"name": "f", "description": "d", "parameters": nothing}


def test_calls_of_strict_functions_are_checked():
    gate = Gate(box(tool("f", strict=True, parameters=SCHEMA), tool("g", parameters=SCHEMA)))
    good, bad, free = Call("f", '{"a": 1}'), Call("f", "{}"), Call("g", "{}")
    assert gate.checks
    assert gate.let([Reasoning("r"), good, bad, free]) == [
        Reasoning("r"),
        good,
        Content("f({})"),
        free,
    ]
    assert gate.calls == 2
    assert not Gate(box(tool("f", strict=True, parameters=SCHEMA), choice="required")).checks


def test_nothing_follows_the_only_call():
    gate = Gate(box(tool("f"), several=False))
    call = Call("f", "{}")
    assert gate.let([Content("a"), call, Content("b"), call]) == [Content("a"), call]
    assert gate.let([Content("c")]) == []


@pytest.mark.parametrize(
    ("given", "more", "param"),
    [
        ((tool("f"), tool("f")), {}, "tools"),
        ((), {"choice": "required"}, "tool_choice"),
        ((), {"choice": NAMED}, "tool_choice"),
        ((), {"several": False}, "parallel_tool_calls"),
        ((tool("f"),), {"choice": NAMED}, "tool_choice"),
        (
            (tool("f"), tool("g", strict=True, parameters={"type": 3})),
            {},
            "tools.1.function.strict",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(given, more, param):
    with pytest.raises(FieldError) as caught:
        box(*given, **more)
    assert caught.value.param == param
