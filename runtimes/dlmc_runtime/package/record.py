"""``package.json``: what a package serves."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from dlmc_runtime.errors import BundleError
from dlmc_runtime.record import MAX_MANIFEST_BYTES, SCHEMA_VERSION, Record, Sha256, parse

PACKAGE = "package.json"
BUNDLE = "bundle"
"""The folder of a package that holds the bundle."""

# Triton makes a folder and part of an address of it, Ray an application's name.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"

Name = Annotated[str, Field(pattern=NAME)]


class PackageRecord(Record):
    """``package.json``: what `dlmc package` made, from what.

    Attributes:
        format: what runs the package.
        name: what clients call the model.
        target: the full name of the bundle's engine.
        manifest_sha256: of the bundle's manifest.
        version: of the dlmc that made it.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    format: Literal["triton", "ray"]
    name: Name
    target: str
    manifest_sha256: Sha256
    version: str


def read_package(root: Path) -> PackageRecord:
    """Read the record of the package in ``root``.

    Raises:
        BundleError: there is none, or it breaks the schema.
    """
    path = root / PACKAGE
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        problem = f"the package's record {path} cannot be read ({error.strerror})"
        raise BundleError(problem, "make the package with dlmc package") from None
    return parse(PackageRecord, text, str(path))
