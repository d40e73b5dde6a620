"""Records: what JSON files of a bundle hold, checked field by field when they are read."""

import json
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dlmc_runtime.errors import BundleError

SCHEMA_VERSION: Final = 2
MAX_MANIFEST_BYTES = 16 << 20
_SHOWN = 300  # characters of a problem that an error message repeats

Count = Annotated[int, Field(ge=1, le=1 << 40)]
Natural = Annotated[int, Field(ge=0, le=1 << 40)]
TokenId = Annotated[int, Field(ge=0, le=1 << 31)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _inside(path: str) -> str:
    """Accept a relative POSIX path that stays inside the bundle."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError("must be a relative path inside the bundle")
    if ":" in parts[0] or str(PurePosixPath(path)) != path:
        raise ValueError("must be a normalised relative path")
    return path


BundlePath = Annotated[str, AfterValidator(_inside)]


class Record(BaseModel):
    """Base of all records: frozen, strict, closed, every number finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FileRecord(Record):
    """Size in bytes and hash of a file of the bundle."""

    size: Natural
    sha256: Sha256


RecordType = TypeVar("RecordType", bound=Record)


def _first_problem(error: ValidationError) -> str:
    """Name the first offending field. Keys come from the file: make them fit for a terminal."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ")
    text = f"{where}: {message}" if where else message
    shown = "".join(symbol if symbol.isprintable() else "?" for symbol in text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; refuse a key given twice, which two readers could read differently."""
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("an object has the same key twice")
    return data


def parse(kind: type[RecordType], text: bytes, where: str) -> RecordType:
    """Parse and check a record of a kind that states its ``schema_version``.

    Raises:
        BundleError: it is not JSON, has another schema version, or breaks the schema; the message
            names the first offending field.
    """
    if len(text) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{where} is larger than {MAX_MANIFEST_BYTES} bytes", "export it again")
    try:
        data: Any = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where} is not valid JSON ({error})", "export it again") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int:  # true and 1.0 equal 1, and are not versions
        raise BundleError(f"{where} states no schema version", "export or build it again")
    if version < SCHEMA_VERSION:
        raise BundleError(
            f"{where} has schema version {version}, this dlmc reads {SCHEMA_VERSION}",
            "export the checkpoint again and build its engines",
        )
    if version > SCHEMA_VERSION:
        raise BundleError(
            f"{where} has schema version {version}, this dlmc reads {SCHEMA_VERSION}",
            "upgrade dlmc or export the checkpoint with this version",
        )
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise BundleError(f"{where}: {_first_problem(error)}", "export or build it again") from None
