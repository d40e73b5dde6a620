"""Which keywords of JSON Schema are enforced, and what is said of the others."""

from collections.abc import Mapping
from typing import Any

from dlmc_runtime.errors import RequestError

Schema = Mapping[str, Any] | bool

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "any value": {
        "type": "one type or a list of them",
        "enum": "written as compact JSON",
        "const": "written as compact JSON",
        "anyOf": "without other keywords beside it",
        "oneOf": "the same, where no value can meet two of the schemas: they have different "
        "types, different constants, or a required property with different constants",
        "allOf": "of one schema",
        "$ref": "within the schema; what contains itself does so at most three times",
    },
    "object": {
        "properties": "in the schema's order",
        "required": "also of names that are no properties",
        "additionalProperties": "their schema; they are written only where no property is named",
    },
    "array": {
        "items": "one schema",
        "prefixItems": "",
        "minItems": "",
        "maxItems": "",
    },
    "string": {
        "minLength": "in characters",
        "maxLength": "in characters",
        "pattern": "not beside lengths or a format; the dialect is below",
        "format": "not beside lengths or a pattern",
    },
    "number": {
        "minimum": "",
        "maximum": "",
        "exclusiveMinimum": "",
        "exclusiveMaximum": "",
    },
}
"""What is enforced, by the type it speaks of, with what to know about it."""

DESCRIBING = frozenset(
    {
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
)
"""Keywords that forbid nothing."""

# Allowed, since they change nothing where they are false.
_FALSE = {"uniqueItems": "array"}

SUPPORTED = frozenset(key for group in KEYWORDS.values() for key in group) | frozenset(_FALSE)

OF_TYPE: Mapping[str, frozenset[str]] = {
    kind: frozenset(KEYWORDS.get("number" if kind == "integer" else kind, ())) for kind in TYPES
}
"""The keywords that speak of a type."""

ALONE: Mapping[str, tuple[str, ...]] = {
    "$ref": (),
    "anyOf": (),
    "oneOf": (),
    "allOf": (),
    "enum": ("type",),
    "const": ("type",),
}
"""Keywords that go without others, but for those named here."""


def refused(path: str, what: str) -> RequestError:
    """Return the error that something is not supported."""
    return RequestError(
        f"{what} at {path[:200]} of the JSON schema is not supported",
        "docs/structured-output.md lists what is",
    )


def follow(root: Schema, reference: str, path: str) -> Schema:
    """Return what a reference within a schema stands for.

    Raises:
        RequestError: it leads elsewhere, or nowhere.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise refused(path, f"the reference {reference[:60]!r}")
    found: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, Mapping) and name in found:
            found = found[name]
        else:
            raise RequestError(
                f"{reference[:60]!r} at {path[:200]} of the JSON schema leads nowhere",
                "define what it names",
            )
    if not isinstance(found, Mapping | bool):
        raise RequestError(
            f"{reference[:60]!r} at {path[:200]} of the JSON schema is no schema",
            "refer to a schema",
        )
    return found
