import pytest

from dlmc_runtime.serve.arguments import MAX_SCHEMAS, Check

NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}}
TREE = {f"t{i}": {"anyOf": [{"$ref": f"#/$defs/t{i + 1}"}] * 2} for i in range(20)}


def of(**properties):
    return {"type": "object", "properties": properties, "additionalProperties": False}


def test_arguments_are_checked():
    place = {"$ref": "#/$defs/place"}
    check = Check({**of(a={"type": "integer"}, b=place), "$defs": {"place": {"enum": ["Ulm"]}}})
    assert check.accepts('{"a": 1, "b": "Ulm"}')
    assert check.accepts("{}")
    for text in ('{"a": "1"}', '{"b": "Bonn"}', '{"c": 1}', "[]", "{", '{"a": ' + "[" * 99_999):
        assert not check.accepts(text)


def test_properties_may_have_any_name_and_defaults_any_value():
    schema = of(pattern={"type": "string"}, uniqueItems={"default": {"pattern": "x"}})
    assert Check(schema).accepts('{"pattern": "(a+)+$"}')


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "nonsense"}, "no JSON schema"),
        (of(a={"type": "string", "pattern": "(a+)+$"}), "pattern is not checked"),
        (of(a={"uniqueItems": True}), "uniqueItems is not checked"),
        (NODE, "refers to itself"),
        ({"$defs": {**TREE, "t20": {}}, "$ref": "#/$defs/t0"}, f"more than {MAX_SCHEMAS}"),
        (of(a={"$ref": "https://example.com/schema"}), "what is not in it"),
        (of(a={"$ref": "#/$defs/none"}), "#/$defs/none is not in it"),
    ],
)
def test_schemas_that_cost_too_much_are_refused(schema, said):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is asked for below)
        Check(schema)
    assert said in str(caught.value)


def test_arguments_that_cost_too_much_are_not_accepted():
    check = Check(of(a={"type": "array", "items": {"allOf": [{"type": "integer"}] * 100}}))
    assert check.accepts('{"a": [1, 2]}')
    assert not check.accepts('{"a": [' + ",".join(["1"] * 20_000) + "]}")
