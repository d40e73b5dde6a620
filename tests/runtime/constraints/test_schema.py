import json
import random
import time
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from dlmc_runtime.constraints import schema
from dlmc_runtime.constraints.keywords import KEYWORDS
from dlmc_runtime.errors import RequestError

OPEN = {"type": "object", "required": ["k"]}
# By keyword: a schema, texts that it allows, and texts that it does not.
EXAMPLES = {
    "type": ({"type": ["boolean", "null"]}, ["true", "null"], ["1", '"a"']),
    "enum": ({"enum": ["a", 1, {"b": [None]}]}, ['"a"', "1", '{"b":[null]}'], ['"b"', "2"]),
    "const": ({"const": 'é"\n'}, ['"é\\"\\n"'], ['"é"']),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, ["null", "-7"], ["true"]),
    "oneOf": (
        {
            "oneOf": [
                {**OPEN, "properties": {"k": {"const": "a"}, "n": {"type": "integer"}}},
                {**OPEN, "properties": {"k": {"enum": ["b", "c"]}}},
            ]
        },
        ['{"k":"a"}', '{"k":"a","n":3}', '{"k":"c"}'],
        ['{"k":"b","n":3}', "{}"],
    ),
    "allOf": ({"allOf": [{"type": "null"}]}, ["null"], ["1"]),
    "$ref": (
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "type": "object"}},
        },
        ["{}", '{"n":' * 3 + "{}" + "}" * 3],
        ['{"n":1}', '{"n":' * 4 + "{}" + "}" * 4],
    ),
    "properties": (
        {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}},
        ["{}", '{"a":1}', '{"a": 1, "b": null}', '{"b":null}'],
        ['{"b":null,"a":1}', '{"a":null}', '{"c":1}', "[]"],
    ),
    "required": (
        {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]},
        ['{"b":null}', '{"a":null,"b":null}'],
        ["{}", '{"a":null}'],
    ),
    "additionalProperties": (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        ["{}", '{"x":1,"y":2}'],
        ['{"x":null}'],
    ),
    "items": ({"items": {"type": "integer"}}, ["[]", "[1, 2,3]"], ["[null]", "1"]),
    "prefixItems": (
        {"prefixItems": [{"type": "null"}, {"type": "integer"}], "items": False, "minItems": 1},
        ["[null]", "[null,1]"],
        ["[]", "[1]", "[null,1,1]"],
    ),
    "minItems": ({"items": {"const": 0}, "minItems": 2}, ["[0,0]", "[0,0,0]"], ["[0]", "[]"]),
    "maxItems": ({"items": {"const": 0}, "maxItems": 1}, ["[0]", "[]"], ["[0,0]"]),
    "minLength": ({"minLength": 2}, ['"éé"', '"\\n\\""', '"abc"'], ['"a"', '"\\n"', "12"]),
    "maxLength": ({"maxLength": 2}, ['""', '"\\\\\\\\"'], ['"abc"']),
    "pattern": ({"pattern": "^a+$"}, ['"aa"'], ['""', '"ba"']),
    "format": ({"format": "date"}, ['"2020-01-31"'], ['"2020-01-32"']),
    "minimum": ({"minimum": -2, "type": "integer"}, ["-2", "0", "77"], ["-3", "1.5"]),
    "maximum": ({"maximum": 0.5}, ["0.5", "-3", "0.25"], ["0.51", "1"]),
    "exclusiveMinimum": ({"exclusiveMinimum": 1}, ["1.01", "2"], ["1", "0"]),
    "exclusiveMaximum": ({"exclusiveMaximum": 1, "type": "integer"}, ["0", "-1"], ["1"]),
}


def test_every_keyword_has_an_example():
    assert set(EXAMPLES) == {key for group in KEYWORDS.values() for key in group}


@pytest.mark.parametrize("keyword", EXAMPLES)
def test_a_keyword_is_enforced(of_schema, matches, walk, keyword):
    description, right, wrong = EXAMPLES[keyword]
    made = of_schema(description)
    validator = Draft202012Validator(description)
    for text in right:
        assert matches(made, text)
        assert validator.is_valid(json.loads(text)), text
    for text in wrong:
        assert not matches(made, text)
    for seed in range(40):
        text = walk(made, random.Random(seed))
        assert validator.is_valid(json.loads(text)), text


NAMES = st.sampled_from(["a", "b", "é", 'q"', "k"])
NUMBERS = st.integers(-30, 30) | st.decimals(-5, 5, places=2).map(float)
BOUNDS = st.dictionaries(
    st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    NUMBERS,
    max_size=2,
)
LEAVES = st.one_of(
    st.just({"type": "string"}),
    st.builds(
        lambda low, more: {"minLength": low, "maxLength": low + more}, *[st.integers(0, 3)] * 2
    ),
    st.builds(
        lambda kind, bounds: {"type": kind, **bounds},
        st.sampled_from(["integer", "number"]),
        BOUNDS,
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.none() | NUMBERS | NAMES, min_size=1, max_size=3),
    ),
    st.sampled_from(
        [{"type": "boolean"}, {"pattern": "^[^a]b?$"}, {"pattern": r"\d|é"}, {"type": "null"}]
    ),
)


def nested(parts):
    objects = st.builds(
        lambda named, required: {
            "type": "object",
            "properties": named,
            "required": sorted({*named} & required),
        },
        st.dictionaries(NAMES, parts, max_size=3),
        st.frozensets(NAMES),
    )
    arrays = st.builds(
        lambda item, low, more: {
            "type": "array",
            "items": item,
            "minItems": low,
            "maxItems": low + more,
        },
        parts,
        *[st.integers(0, 2)] * 2,
    )
    tuples = st.builds(
        lambda first, item: {"type": "array", "prefixItems": first, "items": item},
        st.lists(parts, min_size=1, max_size=2),
        parts | st.booleans(),
    )
    unions = st.builds(lambda some: {"anyOf": some}, st.lists(parts, min_size=1, max_size=2))
    return objects | arrays | tuples | unions


@settings(max_examples=40)
@given(description=st.recursive(LEAVES, nested, max_leaves=5), seed=st.integers(0, 2**32))
def test_every_text_validates(of_schema, walk, description, seed):
    try:
        made = of_schema(description)
    except RequestError as error:
        assert "no text" in error.message  # noqa: PT017  (others do not come from such schemas)
        return
    rng = random.Random(seed)
    for _ in range(8):
        text = walk(made, rng)
        assert Draft202012Validator(description).is_valid(json.loads(text)), text


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"patternProperties": {"a": {}}}, "'patternProperties'"),
        ({"properties": {"a": {"multipleOf": 3}}}, r"'multipleOf' at \$\.properties\.a"),
        ({"not": {}}, "'not'"),
        ({"if": {}}, "'if'"),
        ({"allOf": [{}, {}]}, "'allOf' of more than one"),
        ({"anyOf": [{}], "type": "object"}, "'type' beside 'anyOf'"),
        ({"enum": ["aa"], "minLength": 3}, "'minLength' beside 'enum'"),
        ({"$ref": "#/$defs/a", "minLength": 3, "$defs": {"a": {}}}, "beside '\\$ref'"),
        ({"$ref": "https://example.org/a"}, "reference 'https"),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"$ref": "#/title", "title": "t"}, "is no schema"),
        ({"properties": {"a": {"$id": "b"}}}, "'\\$id'"),
        ({"format": "idn-email"}, "format 'idn-email'"),
        ({"pattern": "a", "maxLength": 2}, "'maxLength' beside 'pattern'"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf' of schemas"),
        ({"oneOf": [{"const": 1}, {"enum": [1.0, 2]}]}, "'oneOf' of schemas"),
        ({"pattern": "(?=a)"}, "kind of group"),
        ({"type": "what"}, "invalid"),
        ({"minLength": "2"}, "invalid"),
        ({"x-mine": 1}, "'x-mine'"),
        (False, "no text validates"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "no text validates"),
        ({"required": ["a"], "additionalProperties": False}, "no text validates"),
        ({"const": "\ud800"}, "half a character"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text validates"),
        ({"properties": {f"p{n}": {"type": "string"} for n in range(300)}}, "too large"),
        ({"prefixItems": [{"type": "string"}] * 9000}, "too large"),
    ],
)
def test_what_is_not_enforced_is_refused_by_name(description, problem):
    with pytest.raises(RequestError, match=problem):
        schema.expression(description)


def test_a_schema_nested_too_deep_is_refused():
    description: dict[str, object] = {}
    for _ in range(60):
        description = {"items": description}
    with pytest.raises(RequestError, match="nested too deep"):
        schema.expression(description)


def test_definitions_that_multiply_are_refused():
    definitions = {
        f"d{n}": {"prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 9, "items": False}
        for n in range(9)
    }
    with pytest.raises(RequestError, match="too large"):
        schema.expression({"$ref": "#/$defs/d0", "$defs": {**definitions, "d9": {"const": 1}}})


def test_what_only_describes_is_allowed(of_schema, matches):
    made = of_schema(
        {"title": "T", "description": "d", "default": 1, "type": "null", "$comment": ""}
    )
    assert matches(made, "null")


def test_an_object_of_any_kind_is_bounded_in_depth(machine, matches, walk):
    made = machine(schema.any_object())
    assert matches(made, "{}")
    assert matches(made, '{"a": [1, {"b": "é"}], "c": {"d": null}}')
    assert not matches(made, "[]")
    assert not matches(made, '{"a":' * 9 + "1" + "}" * 9)
    for seed in range(20):
        assert isinstance(json.loads(walk(made, random.Random(seed))), dict)


def test_a_float_without_a_fraction_is_an_integer(of_schema, matches):
    made = of_schema({"type": "integer", "enum": [1.0, 1.5]})
    assert matches(made, "1.0")
    assert not matches(made, "1.5")


def test_a_bound_beyond_what_is_written_leaves_what_is_within(of_schema, matches):
    made = of_schema({"type": "number", "maximum": 1e300, "minimum": Decimal("-1").__float__()})
    assert matches(made, "123456.5")
    assert not matches(made, "-2")


def test_alternatives_are_not_compared_for_ever(monkeypatch):
    def slow(*_):
        clock[0] += 1.0
        return True

    clock = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(schema, "apart", slow)
    with pytest.raises(RequestError, match="too large"):
        schema.expression({"oneOf": [{"const": n} for n in range(9)]})
    assert clock[0] < 9
