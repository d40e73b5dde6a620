import json

import pytest

from dlmc_runtime.serve.parsers import json_calls
from dlmc_runtime.serve.parsers.deltas import Call


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (' {"name": "f", "arguments": {"a": "é"}}\n', [Call("f", '{"a": "é"}')]),
        ('{"name": "f", "parameters": {"a": 1}}', [Call("f", '{"a": 1}')]),
        ('{"name": "f"}', [Call("f", "{}")]),
        (r'{"name": "f", "arguments": "{\"a\": 1}"}', [Call("f", '{"a": 1}')]),
        ('[{"name": "f", "arguments": {}}, {"name": "g"}]', [Call("f", "{}"), Call("g", "{}")]),
    ],
)
def test_calls_are_read(text, calls):
    assert json_calls.read(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f()",
        "[]",
        "{}",
        "3",
        '{"name": 3}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "x"}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        '{"name": "f", "arguments": {"a": ' + "1" * 10_000 + "}}",
        '[{"name": "f"}, 3]',
    ],
)
def test_what_is_no_call_is_none(text):
    assert json_calls.read(text) is None


def test_a_marker_within_a_string_does_not_end_a_call():
    assert json_calls.closes('{"a": "b"}')
    assert not json_calls.closes('{"a": "b')
    assert not json_calls.closes(r'{"a": "\"')
    assert json_calls.closes(r'{"a": "\\"')


def test_arguments_that_json_cannot_hold_are_refused():
    assert json.loads(json_calls.written({"a": [1, None, "é"]})) == {"a": [1, None, "é"]}
    with pytest.raises(ValueError, match="JSON"):
        json_calls.written({"a": float("inf")})
