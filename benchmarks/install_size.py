"""Measure what a base install (no extras: command line and runtime) takes on disk.

    python benchmarks/install_size.py

Installs this checkout and its dependencies into an empty folder with pip.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from machine import ROOT, Table, parser, report

LARGEST = 8


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(inner.stat().st_size for inner in path.rglob("*") if inner.is_file())


def main() -> None:
    """Install, add up, and print the table."""
    arguments = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, str(ROOT)]
        subprocess.run(command, check=True)
        sizes = {path.name: size(path) / 1e6 for path in Path(folder).iterdir()}
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    rows = [*ranked[:LARGEST], ("others", sum(value for _, value in ranked[LARGEST:]))]
    rows.append(("all", sum(sizes.values())))
    report(Table("install_size", ("package", "MB"), tuple(rows)), arguments.json)


if __name__ == "__main__":
    main()
