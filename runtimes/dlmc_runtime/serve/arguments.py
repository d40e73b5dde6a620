"""Checking the arguments of calls that the model was free to leave out, at a bounded cost."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_SCHEMAS = 2_000
"""Schemas within a schema, each counted as often as it is referred to."""

MAX_CHECKS = 1_000_000
"""Schemas times values of arguments."""

# Keywords whose cost is not bounded by how much there is to check: Python's regular expressions
# can take forever, and the others look at everything again at every level.
COSTLY = (
    "pattern",
    "patternProperties",
    "uniqueItems",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
)
_NAMED = ("properties", "dependentSchemas")
# Definitions are counted where they are referred to; the rest holds values, not schemas.
_PASSED_OVER = ("$defs", "definitions", "const", "enum", "default", "examples")
_LEVELS = 64


class Check:
    """Whether arguments validate against a schema.

    Args:
        schema: of an object.

    Raises:
        ValueError: it is no schema, or one that costs too much to check; the message says why.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"it is no JSON schema: {error.message[:160]}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        self._schemas = _Count(schema).schemas
        # A registry of its own fetches nothing: what is not within the schema is not found.
        self._validator = Draft202012Validator(schema, registry=Registry())

    def accepts(self, arguments: str) -> bool:
        """Return whether the JSON text of an object validates."""
        try:
            value = json.loads(arguments)
            if _values(value) * self._schemas > MAX_CHECKS:
                return False
            self._validator.validate(value)
        except (ValueError, ValidationError, Unresolvable, RecursionError):
            return False
        return True


class _Count:
    """Counts the schemas in a schema, following references as a validator does."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.schemas = 0
        self._visit(root, 0)

    def _visit(self, schema: Any, level: int) -> None:
        if not isinstance(schema, Mapping):
            return
        self.schemas += 1
        if self.schemas > MAX_SCHEMAS or level > _LEVELS:
            raise ValueError(f"it refers to itself, or holds more than {MAX_SCHEMAS} schemas")
        for key, value in schema.items():
            if key in COSTLY:
                raise ValueError(f"{key} is not checked")
            if key == "$ref":
                self._visit(self._find(value), level + 1)
            elif key in _PASSED_OVER:
                continue
            elif key in _NAMED and isinstance(value, Mapping):
                for one in value.values():
                    self._visit(one, level + 1)
            else:
                for one in value if isinstance(value, list) else [value]:
                    self._visit(one, level + 1)

    def _find(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ValueError("it refers to what is not in it")
        found: Any = self._root
        for part in reference.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                raise ValueError(f"{reference[:80]} is not in it")
        return found


def _values(value: Any) -> int:
    """Return how many values a value holds."""
    count, pending = 0, [value]
    while pending:
        one = pending.pop()
        count += 1
        if isinstance(one, Mapping):
            pending += one.values()
        elif isinstance(one, Sequence) and not isinstance(one, str):
            pending += one
    return count
