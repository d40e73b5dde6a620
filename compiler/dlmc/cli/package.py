"""`dlmc package`: a folder that Triton or Ray Serve runs a bundle from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli.console import DEFAULT_TARGET, AsJson, BundlePath, Target, say, say_json, size

if TYPE_CHECKING:
    from dlmc.package.contents import Contents


def command(
    bundle: BundlePath,
    form: Annotated[str, typer.Option("--format", help="What is to run it: triton or ray.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")
    ],
    target: Target = DEFAULT_TARGET,
    name: Annotated[
        str | None,
        typer.Option(help="What clients call the model. [default: the bundle's folder]"),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Python environment, a folder or archive on the server, that Triton is to use.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a folder that another server runs a bundle from.

    It holds the bundle with one engine, as hard links where the disk can, and a README with the
    commands to start and to call it. The server needs no compiler.
    """
    from dlmc.package.options import PackageOptions, parse_format
    from dlmc.package.write import README, write_package

    options = PackageOptions(bundle, parse_format(form), output, target, name, environment, force)
    contents = write_package(options)
    if as_json:
        say_json(report(contents))
    else:
        say(f"packaged {contents.engine} for {options.format}, {size(_bytes(output))}")
        say(f"next: {output / README}")


def report(contents: "Contents") -> dict[str, Any]:
    """Return what ``--json`` prints."""
    options = contents.options
    return {
        "format": options.format,
        "name": contents.name,
        "target": contents.engine,
        "output": str(options.output),
        "bytes": _bytes(options.output),
    }


def _bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
