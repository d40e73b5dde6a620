"""What verbs share: options, tables, JSON, and where text goes."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

BundlePath = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A folder that dlmc export has made.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Target = Annotated[str, typer.Option(help="Which kind of engine; dlmc doctor lists them.")]

DEFAULT_TARGET = "onnxruntime-cpu"
# A model may write what steers a terminal; shown instead are Unicode's pictures of such characters.
_CONTROL = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_CONTROL |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_UNITS = ("B", "kB", "MB", "GB", "TB")


def say(text: str) -> None:
    """Print a result to stdout."""
    typer.echo(text)


def note(text: str) -> None:
    """Print to stderr what is no result."""
    typer.echo(text, err=True)


def say_json(data: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document, on one line, to stdout."""
    typer.echo(json.dumps(data, ensure_ascii=False))


def on_terminal() -> bool:
    """Return whether stdout is read by a person."""
    return sys.stdout is not None and sys.stdout.isatty()  # None where it was closed


@contextmanager
def progress(first: str = "opening the bundle") -> Iterator[Callable[[str], object]]:
    """Yield what shows the part of the work that begins, where a person is watching."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(first) as status:
        yield status.update


def harmless(text: str) -> str:
    """Return text without characters that steer a terminal."""
    return text.translate(_CONTROL)


def table(rows: Sequence[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Return aligned columns; numbers and text alike are left-aligned."""
    cells = [[str(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def size(count: int) -> str:
    """Return a number of bytes with three digits, such as ``16.1 GB``."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"
