"""Whether no value can validate against two schemas."""

import json
from collections.abc import Mapping
from typing import Any

from dlmc_runtime.constraints.keywords import TYPES, Schema, follow

_LEVELS = 8  # of references that lead to references


def apart(root: Schema, one: Schema, other: Schema, path: str) -> bool:
    """Return whether it is plain that no value validates against both.

    So it is where they allow different types or different constants, or objects with a required
    property whose constants differ.
    """
    first, second = (_target(root, schema, path) for schema in (one, other))
    if first is False or second is False:
        return True
    if isinstance(first, bool) or isinstance(second, bool):
        return False
    kinds, others = _kinds(first), _kinds(second)
    if not kinds & others:
        return True
    values, rest = _values(first), _values(second)
    if values is not None and rest is not None:
        return not values & rest
    return kinds & others == {"object"} and _told_apart(root, first, second, path)


def _told_apart(
    root: Schema, first: Mapping[str, Any], second: Mapping[str, Any], path: str
) -> bool:
    """Return whether objects have a required property whose constants differ."""
    named, known = first.get("properties", {}), second.get("properties", {})
    for name in set(first.get("required", ())) & set(second.get("required", ())):
        pair = [_target(root, part[name], path) for part in (named, known) if name in part]
        found = [_values(schema) for schema in pair if isinstance(schema, Mapping)]
        if len(found) == 2 and None not in found and not set(found[0] or ()) & set(found[1] or ()):
            return True
    return False


def _target(root: Schema, schema: Schema, path: str) -> Schema:
    for _ in range(_LEVELS):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = follow(root, schema["$ref"], path)
    return schema


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that may validate; numbers of both kinds are one."""
    given = schema.get("type", TYPES)
    if "type" not in schema and not {"$ref", "anyOf", "oneOf", "allOf"} & schema.keys():
        values = _values(schema)
        if values is not None:
            return {_kind(value) for value in values}
    kinds = {given} if isinstance(given, str) else set(given)
    return {"number" if kind == "integer" else kind for kind in kinds}


def _kind(text: str) -> str:
    value = json.loads(text)
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "number")


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    """Return the constants that a schema allows, in one writing; None where it names none."""
    if "const" in schema:
        return {_canonical(schema["const"])}
    if "enum" in schema:
        return {_canonical(value) for value in schema["enum"]}
    return None


def _canonical(value: object) -> str:
    """Return a value as text, the same for values that JSON Schema takes for equal."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value
