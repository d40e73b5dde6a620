"""What every benchmark shares: the machine's description, a table, a JSON file."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
_PACKAGES = ("dlmc", "numpy", "onnxruntime", "openvino", "torch", "onnx", "onnxscript")

Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """A benchmark's result: one row per thing measured; units stand in the column names."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def describe() -> dict[str, str]:
    """Return processor, cores, memory, system, package versions and the commit."""
    found = {
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))) if sys.platform == "linux" else "",
        "memory": _memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / 2**30:.0f} GiB"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return an argument parser with ``--json``, described by a module's docstring."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--json", type=Path, help="also write the table and the machine here")
    return made


def dlmc(*arguments: str | Path) -> None:
    """Run a dlmc command of this environment, its output hidden unless it fails."""
    command = [Path(sys.executable).with_name("dlmc"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")


def report(table: Table, path: Path | None) -> None:
    """Print a table and the machine it was measured on; write both to ``path`` if given."""
    machine = describe()
    print(", ".join(f"{name} {value}" for name, value in machine.items() if value), "\n")
    shown = [table.columns, *(tuple(map(_shown, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    rule = tuple("-" * width for width in widths)
    for row in (shown[0], rule, *shown[1:]):
        cells: Sequence[str] = [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        print(f"| {' | '.join(cells)} |")
    if path is not None:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        result = {"benchmark": table.name, "machine": machine, "rows": rows}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _shown(cell: Cell) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
