import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlmc_runtime.serve.parsers import gemma_calls
from dlmc_runtime.serve.parsers.deltas import Call
from dlmc_runtime.serve.parsers.gemma_calls import QUOTE

TEXT = st.text(max_size=8).filter(lambda text: QUOTE not in text and "\ud800" not in text)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
FINITE = SCALARS.filter(lambda value: value not in (float("inf"), float("-inf")))
VALUES = st.recursive(
    FINITE, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=6
)


def rendered(value, depth=0):
    """Return a value as the template of `gemma_style.jinja` writes it."""
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        members = (f"{rendered(key)}:{rendered(one)}" for key, one in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(rendered, value)) + "]"
    return json.dumps(value)


@given(st.dictionaries(TEXT, VALUES, max_size=3))
@settings(max_examples=40)
def test_what_a_template_writes_is_read(arguments):
    (call,) = gemma_calls.read(f"call:f{rendered(arguments)}") or [Call("", "")]
    assert call.name == "f"
    assert json.loads(call.arguments) == arguments


def test_keys_stand_bare():
    text = f"\ncall:get_weather {{days: 2,exact:true,place:{QUOTE}Köln{QUOTE},where:{{lat:50.9}}}} "
    (call,) = gemma_calls.read(text) or [Call("", "")]
    assert call.arguments == '{"days": 2, "exact": true, "place": "Köln", "where": {"lat": 50.9}}'
    assert gemma_calls.read("call:now{}") == [Call("now", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now{}",
        "call:{}",
        "call:f",
        "call:f{",
        "call:f{raw}",
        "call:f{a:}",
        "call:f{a:1,}",
        "call:f{a:1}}",
        "call:f{a:word}",
        "call:f{a:01}",
        "call:f{a:[1}",
        "call:f{a:1e999}",
        f"call:f{{a:{QUOTE}b}}",
        "call:f{a:" + "[" * 100_000,
        "call:f{a:" + "[" * 70 + "]" * 70 + "}",
        "call:f{a:" + "9" * 10_000 + "}",
    ],
)
def test_what_is_no_call_is_none(text):
    assert gemma_calls.read(text) is None


def test_a_marker_within_a_string_does_not_end_a_call():
    assert gemma_calls.closes(f"call:f{{a:{QUOTE}x{QUOTE}")
    assert not gemma_calls.closes(f"call:f{{a:{QUOTE}x")
