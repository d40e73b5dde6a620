"""Measure the export of full shapes from their configurations alone.

    python benchmarks/export_memory.py

Runs `dlmc export --no-weights` in a process of its own for each of them, LLaDA 8B and networks with
experts up to LLaDA2.2 flash, and reports wall time, processor time, peak resident memory and the
bytes of the bundle. Every shape is that of a recipe.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dlmc import recipes
from machine import Table, parser, report

SHAPES = (
    "llada/llada-8b-instruct",
    "diffusion_gemma/diffusiongemma-26b-a4b-it",
    "llada2/llada2.0-mini",
    "sdar/sdar-30b-a3b-chat",
    "rnd1/rnd1-base-0910",
    "llada2/llada2.2-flash",
)
COLUMNS = ("shape", "weights B", "seconds", "processor seconds", "peak memory MB", "written MB")


@dataclass(frozen=True)
class Cost:
    """What a child process took: wall and processor time in seconds, peak memory in bytes."""

    seconds: float
    processor: float
    peak: int


def export(checkpoint: Path, bundle: Path) -> Cost:
    """Export in a child process."""
    program = str(Path(sys.executable).with_name("dlmc"))
    command = [program, "export", str(checkpoint), "-o", str(bundle)]
    command += ["--no-weights", "--no-tokenizer"]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"dlmc export exited with {child.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    seconds = time.perf_counter() - began
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit)


def row(name: str) -> tuple[str, float, float, float, float, float]:
    """Export the shape of a recipe and describe what it took."""
    recipe = recipes.load(name)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, bundle = Path(folder, recipe.name), Path(folder, "bundle")
        checkpoint.mkdir()
        files = {"config": recipe.config, "generation_config": recipe.generation_config}
        for file, values in files.items():
            (checkpoint / f"{file}.json").write_text(json.dumps(values), encoding="utf-8")
        cost = export(checkpoint, bundle)
        written = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    billions = (recipe.parameters or 0) / 1e9
    return recipe.name, billions, cost.seconds, cost.processor, cost.peak / 1e6, written / 1e6


def main() -> None:
    """Export every shape once and print the table."""
    options = parser(__doc__)
    options.add_argument("--recipe", action="append", help="only this recipe; repeatable")
    arguments = options.parse_args()
    rows = tuple(row(name) for name in arguments.recipe or SHAPES)
    report(Table("export_memory", COLUMNS, rows), arguments.json)


if __name__ == "__main__":
    main()
