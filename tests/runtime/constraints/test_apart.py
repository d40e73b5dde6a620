import pytest

from dlmc_runtime.constraints.apart import apart

ROOT = {"$defs": {"a": {"const": "a"}, "loop": {"$ref": "#/$defs/loop"}}}


def tagged(**tag):
    return {"type": "object", "properties": {"k": tag}, "required": ["k"]}


def untyped(**tag):
    """An object, or anything that is none."""
    return {"properties": {"k": tag}, "required": ["k"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"type": "string"}, {"type": ["integer", "null"]}),
        ({"const": 1}, {"enum": [2, "1"]}),
        ({"const": "a"}, {"type": "integer"}),
        ({"const": True}, {"const": 1}),
        (False, {}),
        (tagged(const="a"), tagged(const="b")),
        (tagged(**{"$ref": "#/$defs/a"}), tagged(enum=["b", "c"])),
        ({"$ref": "#/$defs/a"}, {"const": "b"}),
    ],
)
def test_no_value_meets_both(one, other):
    assert apart(ROOT, one, other, "$")
    assert apart(ROOT, other, one, "$")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, {}),
        ({}, {"type": "string"}),
        ({"type": "integer"}, {"type": "number"}),
        ({"const": 1}, {"const": 1.0}),
        ({"const": {"a": [1]}}, {"const": {"a": [1.0]}}),
        (tagged(const="a"), tagged(type="string")),
        (tagged(const="a"), {**tagged(const="b"), "required": []}),
        (untyped(const="a"), untyped(const="b")),
        ({"anyOf": [{"type": "string"}]}, {"type": "null"}),
        ({"$ref": "#/$defs/loop"}, {"const": "b"}),
    ],
)
def test_what_is_not_plain_is_not_claimed(one, other):
    assert not apart(ROOT, one, other, "$")
