import re
from types import SimpleNamespace
from typing import Any

import pytest
import speaking

from dlmc_runtime.errors import RequestError
from dlmc_runtime.serve import calling, tools
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.parsers import formats
from dlmc_runtime.serve.parsers.deltas import Call
from dlmc_runtime.serve.parsers.formats import BARE, CALLS, Format
from dlmc_runtime.serve.tools import Tool

GEMMA, NEMOTRON, HERMES = CALLS
SCHEMA = {"properties": {"a": {"enum": ["x", "+"]}}, "required": ["a"], "type": "object"}


class Compiler:
    """Notes what it is asked for, and compiles nothing."""

    def expression(self, text):
        return text


def matches(rust, text):
    """Return whether a Rust expression, put into Python's dialect, matches all of a text."""
    python = re.sub(r"\\x\{([0-9A-F]+)\}", lambda found: re.escape(chr(int(found[1], 16))), rust)
    return re.fullmatch(python, text) is not None


def expression(style, *given, **more):
    read = [Tool.model_validate({"type": "function", "function": one}) for one in given]
    box = tools.toolbox(read, "required", several=more.get("several"))
    served: Any = SimpleNamespace(generator=SimpleNamespace(constraints=more.get("by", Compiler())))
    return calling.constraint(served, style, box)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a":"+"}}\n</tool_call>'),
        (NEMOTRON, '<TOOLCALL>[{"name": "f", "arguments": {"a": "x"}}]</TOOLCALL>'),
        (BARE, '[{"name": "f", "arguments": {"a": "x"}}]'),
        (GEMMA, '[{"name": "f", "arguments": {"a": "x"}}]'),
    ],
)
def test_a_call_is_written_in_the_model_s_format(calls, text):
    style = Format(None, calls)
    pattern = expression(style, {"name": "f", "parameters": SCHEMA})
    assert matches(pattern, text)
    assert not matches(pattern, text.replace('"a"', '"b"'))
    assert not matches(pattern, "")
    parser = style.parser("", {"f"}) if calls is not GEMMA else Format(None, BARE).parser("", {"f"})
    (call,) = [*parser.feed(text), *parser.end()]
    assert isinstance(call, Call)
    assert call.name == "f"


def test_special_tokens_are_no_text_that_could_be_kept_to():
    assert calling.form(formats.find(speaking.codec("gemma"))) is BARE
    assert calling.form(formats.find(speaking.codec("hermes"))) is HERMES
    assert calling.form(Format(None, HERMES, frozenset({"<tool_call>"}))) is BARE


def test_several_calls_and_several_functions():
    style = Format(None, NEMOTRON)
    f, g = {"name": "f", "parameters": SCHEMA}, {"name": "g.h"}
    one = '{"name": "f", "arguments": {"a":"x"}}'
    other = '{"name": "g.h", "arguments": {}}'
    pattern = expression(style, f, g, several=True)
    assert matches(pattern, f"<TOOLCALL>[{one}, {other}]</TOOLCALL>")
    assert not matches(pattern, f"<TOOLCALL>[{one}, {other.replace('.', '-')}]</TOOLCALL>")
    assert not matches(expression(style, f, g), f"<TOOLCALL>[{one}, {other}]</TOOLCALL>")
    assert not matches(pattern, f"<TOOLCALL>[{', '.join([one] * 5)}]</TOOLCALL>")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"type": "string"}, "arguments are an object"), ({"properties": {"a": {"type": 3}}}, "$")],
)
def test_parameters_that_cannot_be_kept_to_are_refused(parameters, said):
    with pytest.raises(FieldError) as caught:
        expression(Format(None, HERMES), {"name": "g"}, {"name": "f", "parameters": parameters})
    assert caught.value.param == "tools.1.function.parameters"
    assert said in str(caught.value)


def test_what_is_too_large_is_the_fault_of_the_tools():
    class Full:
        def expression(self, text):
            raise RequestError("it is too large", "make it smaller")

    with pytest.raises(FieldError, match="cannot be enforced: it is too large") as caught:
        expression(Format(None, HERMES), {"name": "f"}, by=Full())
    assert caught.value.param == "tools"
