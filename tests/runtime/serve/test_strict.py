import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlmc_runtime.serve.strict import MAX_DEPTH, MAX_KEYS, MAX_VALUES, parse


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


def members(count, again=None):
    names = [*(f"k{n}" for n in range(count)), *([again] if again else [])]
    return ("{" + ",".join(f'"{name}":0' for name in names) + "}").encode()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"[1]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b'{"a": 1} x', "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b'{"a": 1, "a": 2}', "has 'a' twice"),
        (b'{"b": {"a": 1, "a": 1}}', "has 'a' twice"),
        (b'{"a": NaN}', "holds NaN"),
        (b'{"a": -Infinity}', "holds -Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b'{"a": "\xff"}', "is not UTF-8 at byte 7"),
        (nested(MAX_DEPTH + 1), "nested"),
        (nested(100_000), "nested"),
        (members(MAX_KEYS, again="k8191"), "keys"),
        (members(MAX_KEYS - 1, again="k8190"), "has 'k8190' twice"),
        (b'{"a": [' + b"1," * MAX_VALUES + b"1]}", "values"),
    ],
)
def test_what_is_not_one_plain_object_is_refused(data, problem):
    with pytest.raises(ValueError, match=problem):
        parse(data)


def test_escaped_pairs_of_surrogates_are_one_character():
    assert parse(b'{"a": "\\ud83d\\ude42"}') == {"a": "🙂"}


def test_a_body_may_be_nested_as_deeply_as_is_said():
    assert parse(nested(MAX_DEPTH - 1))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_plain_objects_are_read_as_json_reads_them(value):
    assert parse(json.dumps(value).encode()) == value


@given(st.binary(max_size=60))
def test_any_bytes_give_an_object_or_a_refusal(data):
    with suppress(ValueError):
        assert isinstance(parse(data), dict)


def test_as_much_as_is_said_is_read():
    many = b",".join([members(MAX_KEYS)] * 15)
    assert len(parse(b'{"a": [' + many + b"]}")["a"]) == 15
