"""From a JSON schema to an expression for texts that validate.

Every text that the expression matches validates; not every text that validates is matched. Texts
are compact, or have one space behind commas and colons; properties come in the schema's order, and
none that it does not name; lengths that a schema leaves open are open. A keyword that is not
understood is refused, unless it only describes.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from dlmc_runtime.constraints import numbers, regex
from dlmc_runtime.constraints.apart import apart
from dlmc_runtime.constraints.characters import NOTHING
from dlmc_runtime.constraints.formats import FORMATS
from dlmc_runtime.constraints.keywords import (
    ALONE,
    DESCRIBING,
    OF_TYPE,
    SUPPORTED,
    TYPES,
    Schema,
    follow,
    refused,
)
from dlmc_runtime.constraints.machine import MAX_PATTERN
from dlmc_runtime.errors import DlmcError, RequestError

DEPTH = 3
"""Levels of arrays and objects in a value of which nothing is said, and of a `json_object`."""

RECURSION = 3
"""How often a definition may occur within itself."""

_LEVELS = 48  # of a schema
_PARTS = 4_000  # values of all kinds in a schema
_VALUES = 5_000  # schemas visited, with every time that one is referred to
_SECONDS = 3.0  # of this thread's work: the alternatives of a few bytes may have millions of pairs
_COMMA, _COLON = ", ?", ": ?"
_STRING = f'"(?:{regex.json_character()})*"'


def expression(schema: Schema) -> str:
    """Return a Rust expression whose texts validate against a schema.

    Raises:
        RequestError: the schema is none, uses what is not supported, or nothing validates.
        DlmcError: the library that checks schemas is not installed.
    """
    _check(schema)
    found = _Writer(schema).value(schema, "$", 0)
    if found is None:
        raise RequestError("no text validates against the JSON schema", "give one that can be met")
    return found


def any_object() -> str:
    """Return a Rust expression for JSON objects, with arrays and objects `DEPTH` levels deep."""
    return _object_of(_anything(DEPTH - 1))


def _check(schema: Schema) -> None:
    """Refuse what is no schema.

    Raises:
        RequestError: it is none, or too large.
        DlmcError: the library is not installed.
    """
    waiting: list[object] = [schema]
    for count in range(_PARTS + 1):
        if not waiting:
            break
        if count == _PARTS:
            raise RequestError(
                f"the JSON schema is too large: over {_PARTS} parts", "make it smaller"
            )
        part = waiting.pop()
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    try:
        from jsonschema import Draft202012Validator, SchemaError
    except ModuleNotFoundError:
        raise DlmcError("jsonschema is not installed", "install dlmc[serve]") from None
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, ("$", *error.absolute_path)))
        problem = f"{where} of the JSON schema is invalid: {error.message[:200]}"
        raise RequestError(problem, "follow draft 2020-12") from None
    except RecursionError:
        raise RequestError("the JSON schema is nested too deep", "make it flatter") from None


def _literal(value: object) -> str:
    """Return an expression for a value as compact JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError("the JSON schema holds half a character", "give Unicode") from None
    return "".join(
        one if one.isalnum() and one.isascii() else rf"\x{{{ord(one):X}}}" for one in text
    )


def _either(parts: Sequence[str | None]) -> str | None:
    found = list(dict.fromkeys(part for part in parts if part is not None))
    if not found:
        return None
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def _anything(depth: int) -> str:
    """Return an expression for any value with ``depth`` levels of arrays and objects."""
    scalars = f"(?:{_STRING}|{numbers.ANY_NUMBER}|true|false|null)"
    if not depth:
        return scalars
    inner = _anything(depth - 1)
    return f"(?:{scalars}|{_array_of(inner)}|{_object_of(inner)})"


def _array_of(item: str) -> str:
    return rf"\[(?:{item}(?:{_COMMA}{item})*)?\]"


def _object_of(value: str) -> str:
    member = f"{_STRING}{_COLON}{value}"
    return rf"\{{(?:{member}(?:{_COMMA}{member})*)?\}}"


class _Writer:
    """Writes one schema. An expression that is None matches nothing."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.visited, self.began = 0, time.thread_time()
        self.open: dict[str, int] = {}
        self.types: dict[str, Callable[[Mapping[str, Any], str, int], str | None]] = {
            "null": lambda *_: "null",
            "boolean": lambda *_: "(?:true|false)",
            "integer": lambda schema, *_: _possible(numbers.integer(_bounds(schema))),
            "number": lambda schema, *_: _possible(numbers.number(_bounds(schema))),
            "string": self.string,
            "array": self.array,
            "object": self.object,
        }

    def value(self, schema: Schema, path: str, level: int) -> str | None:
        """Return an expression for values that validate against a part of the schema."""
        self.visited += 1
        self.spend(path, level)
        if isinstance(schema, bool):
            return _anything(DEPTH - 1) if schema else None
        self.check(schema, path)
        found = self.written(schema, path, level + 1)
        return None if found is None else _bounded(found, path)

    def spend(self, path: str, level: int = 0) -> None:
        """Refuse a schema that takes too much."""
        late = time.thread_time() - self.began > _SECONDS
        if late or self.visited > _VALUES or level > _LEVELS:
            raise RequestError(
                f"the JSON schema is too large, or nested too deep, at {path[:200]}",
                "make it smaller or flatter",
            )

    def check(self, schema: Mapping[str, Any], path: str) -> None:
        """Refuse keywords that are not supported, or not beside others."""
        asserting = [key for key in schema if key not in DESCRIBING]
        for key in asserting:
            if key not in SUPPORTED:
                raise refused(path, f"the keyword {key[:60]!r}")
        if "$id" in schema and path != "$":  # references would be relative to it
            raise refused(path, "the keyword '$id'")
        for key in ALONE:
            others = [one for one in asserting if one not in (key, *ALONE[key])]
            if key in schema and others:
                raise refused(path, f"{others[0]!r} beside {key!r}")

    def written(self, schema: Mapping[str, Any], path: str, level: int) -> str | None:
        """Return the expression of what is not only a truth value."""
        if "$ref" in schema:
            return self.referred(schema["$ref"], path, level)
        if "allOf" in schema:
            if len(schema["allOf"]) != 1:
                raise refused(path, "'allOf' of more than one schema")
            return self.value(schema["allOf"][0], f"{path}.allOf.0", level)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.union(schema[key], f"{path}.{key}", level, exclusive=key == "oneOf")
        wanted = _types(schema)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            fitting = [one for one in values if wanted is None or _is_of(one, wanted)]
            return _either([_literal(one) for one in fitting])
        if wanted is None:
            wanted = [kind for kind in TYPES if OF_TYPE[kind] & schema.keys()]
            wanted = [kind for kind in wanted if kind != "integer"]
        if not wanted:
            return _anything(DEPTH - 1)
        return _either([self.types[kind](schema, path, level) for kind in wanted])

    def referred(self, reference: str, path: str, level: int) -> str | None:
        """Return the expression of a definition; None where it is within itself too often."""
        target = follow(self.root, reference, path)
        count = self.open.get(reference, 0)
        if count > RECURSION:
            return None
        self.open[reference] = count + 1
        found = self.value(target, reference, level)
        self.open[reference] = count
        return found

    def union(
        self, parts: Sequence[Schema], path: str, level: int, *, exclusive: bool
    ) -> str | None:
        """Return what validates against one of several schemas."""
        if exclusive:
            for place, one in enumerate(parts):
                self.spend(path)
                for other in parts[:place]:
                    if not apart(self.root, one, other, path):
                        raise refused(path, "'oneOf' of schemas that one value may meet both of")
        return _either(
            [self.value(part, f"{path}.{place}", level) for place, part in enumerate(parts)]
        )

    def string(self, schema: Mapping[str, Any], path: str, level: int) -> str | None:
        """Return an expression for a string."""
        del level
        bounded = [key for key in ("minLength", "maxLength") if key in schema]
        given = [key for key in ("pattern", "format") if key in schema]
        if len(given) + bool(bounded) > 1:
            raise refused(path, f"{(given + bounded)[1]!r} beside {given[0]!r}")
        if "pattern" in schema:
            return f'"(?:{regex.inside_json(schema["pattern"])})"'
        if "format" in schema:
            if schema["format"] not in FORMATS:
                raise refused(path, f"the format {str(schema['format'])[:60]!r}")
            return f'"{FORMATS[schema["format"]]}"'
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        if not bounded:
            return _STRING
        if most is not None and most < least:
            return None
        most = "" if most is None else int(most)
        return f'"(?:{regex.json_character()}){{{least},{most}}}"'

    def array(self, schema: Mapping[str, Any], path: str, level: int) -> str | None:
        """Return an expression for an array."""
        if schema.get("uniqueItems"):
            raise refused(path, "the keyword 'uniqueItems'")
        first = [
            self.value(part, f"{path}.prefixItems.{place}", level)
            for place, part in enumerate(schema.get("prefixItems", ()))
        ]
        least = int(schema.get("minItems", 0))
        most = None if "maxItems" not in schema else int(schema["maxItems"])
        open_end = "items" in schema or not first or least > len(first)
        rest = self.value(schema.get("items", True), f"{path}.items", level) if open_end else None
        if most is not None and most < least:
            return None
        return _array(first, rest, (least, most), path)

    def object(self, schema: Mapping[str, Any], path: str, level: int) -> str | None:
        """Return an expression for an object."""
        named: Mapping[str, Schema] = schema.get("properties", {})
        required = schema.get("required", ())
        others = schema.get("additionalProperties", True)
        if not named and not required:
            value = self.value(others, f"{path}.additionalProperties", level)
            return r"\{\}" if value is None else _object_of(value)
        members: list[tuple[str, bool]] = []
        for name in dict.fromkeys((*named, *required)):
            value = self.value(named.get(name, others), f"{path}.properties.{name}", level)
            if value is not None:
                members.append((f"{_literal(name)}{_COLON}{value}", name in required))
            elif name in required:
                return None
        return rf"\{{{_members(members, path)}\}}"


def _bounded(text: str, path: str) -> str:
    """Return an expression that is not too long already.

    Raises:
        RequestError: it is.
    """
    if len(text) > MAX_PATTERN:
        raise RequestError(
            f"the JSON schema is too large at {path[:200]}",
            "make it smaller, or require more of its properties",
        )
    return text


def _array(
    first: Sequence[str | None],
    rest: str | None,
    counts: tuple[int, int | None],
    path: str,
) -> str | None:
    """Return an array that begins with ``first`` and goes on with any number of ``rest``."""
    least, most = counts
    places = len(first) if most is None else min(len(first), most)
    if None in first[:least]:
        return None
    usable = next((place for place in range(places) if first[place] is None), places)
    tail = ""
    if usable == len(first) and rest is not None:
        lower = max(least - usable, 0)
        upper = None if most is None else most - usable
        tail = _repeated(rest, lower, upper, comma=usable > 0)
    elif least > usable:
        return None
    for place in range(usable - 1, -1, -1):
        item = (_COMMA if place else "") + str(first[place]) + tail
        tail = _bounded(item if place < least else f"(?:{item})?", path)
    return rf"\[{tail}\]"


def _repeated(item: str, least: int, most: int | None, *, comma: bool) -> str:
    """Return items with commas between them, and before the first one as well if asked."""
    if most is not None and most <= 0:
        return ""
    if comma:
        return f"(?:{_COMMA}{item}){{{least},{'' if most is None else most}}}"
    more = f"(?:{_COMMA}{item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
    return f"{item}{more}" if least else f"(?:{item}{more})?"


def _members(members: Sequence[tuple[str, bool]], path: str) -> str:
    """Return members in their order, of which the required ones are there."""
    begun = unbegun = ""  # what follows behind a member, and where none has been yet
    for text, required in reversed(members):
        first = f"{text}{begun}"
        unbegun = _bounded(first if required else f"(?:{first}|{unbegun})", path)
        begun = f"{_COMMA}{text}{begun}" if required else f"(?:{_COMMA}{text})?{begun}"
    return unbegun


def _types(schema: Mapping[str, Any]) -> list[str] | None:
    """Return the types that a schema states, None where it states none."""
    given = schema.get("type")
    if given is None:
        return None
    return [given] if isinstance(given, str) else list(given)


def _is_of(value: object, wanted: Sequence[str]) -> bool:
    """Return whether a value is of one of some types."""
    if isinstance(value, float) and value.is_integer():
        return "integer" in wanted or "number" in wanted
    names = {
        bool: ("boolean",),
        int: ("integer", "number"),
        float: ("number",),
        str: ("string",),
        list: ("array",),
        dict: ("object",),
        type(None): ("null",),
    }
    return any(name in wanted for name in names[type(value)])


def _possible(pattern: str) -> str | None:
    return None if pattern == NOTHING else pattern


def _bounds(schema: Mapping[str, Any]) -> numbers.Bounds:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    given = (schema.get(name) for name in names)
    return numbers.Bounds(*(None if one is None else Decimal(repr(one)) for one in given))
