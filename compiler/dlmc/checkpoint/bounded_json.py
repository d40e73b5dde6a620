"""JSON from files that nobody vouches for."""

import json
from pathlib import Path
from typing import Any

from dlmc_runtime.errors import CheckpointError

MAX_JSON_BYTES = 64 << 20


def parse_json(text: bytes) -> Any:
    """Parse one JSON value, in whose objects each key is unique.

    Raises:
        ValueError: it is something else; the message completes "the file is ...".
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except _DuplicateKeyError as error:
        raise ValueError(f"ambiguous (it has {error} twice)") from None
    except ValueError as error:
        raise ValueError(f"not valid JSON ({error})") from None


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse one JSON object whose keys are unique.

    Raises:
        ValueError: it is something else; the message completes "the file is ...".
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


class _DuplicateKeyError(ValueError):
    """The key, quoted."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(repr(key[:120]))
        found[key] = value
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of at most 64 MiB.

    Raises:
        CheckpointError: the file cannot be read, is too large or is not one JSON object.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path} ({error.strerror})", "check the file") from None
    if len(text) > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than {MAX_JSON_BYTES} bytes", "check the file")
    try:
        return parse_object(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is {error}", "download or write it again") from None
