"""What `dlmc package` is asked for."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from dlmc_runtime.errors import UsageError
from dlmc_runtime.package.record import NAME

Format = Literal["triton", "ray"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class PackageOptions:
    """One package.

    Attributes:
        bundle: what to serve.
        format: what serves it.
        output: the folder to write.
        target: the engine, a target or an engine's full name.
        name: what clients call the model; None for the bundle's folder.
        environment: the Python environment that Triton runs the model in, as a folder or packed
            archive on the server; None for the server's own.
        force: replace a package that is there.
    """

    bundle: Path
    format: Format
    output: Path
    target: str
    name: str | None = None
    environment: str | None = None
    force: bool = False


def parse_format(text: str) -> Format:
    """Return a format.

    Raises:
        UsageError: there is none of that name.
    """
    for known in FORMATS:
        if text == known:
            return known
    raise UsageError(f"--format is {text!r}", f"choose one of {', '.join(FORMATS)}")


def model_name(options: PackageOptions) -> str:
    """Return what clients call the model.

    Raises:
        UsageError: it cannot be part of an address.
    """
    name = options.bundle.resolve().name if options.name is None else options.name
    if not re.match(NAME, name) or name.endswith("\n"):
        hint = "give --name of letters, digits, '.', '_' and '-', at most 64"
        raise UsageError(f"{name!r} cannot name a model", hint)
    return name
