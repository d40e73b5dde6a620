"""Measure how long importing the runtime and asking for help take in a fresh process.

python benchmarks/startup.py
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from machine import Table, parser, report

REPEATS = 15
_PROGRAM = str(Path(sys.executable).with_name("dlmc"))
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "import dlmc_runtime": (sys.executable, "-c", "import dlmc_runtime"),
    "import Generator": (sys.executable, "-c", "from dlmc_runtime import Generator"),
    "dlmc --help": (_PROGRAM, "--help"),
    "dlmc run --help": (_PROGRAM, "run", "--help"),
}


def seconds(command: tuple[str, ...]) -> float:
    """Return the wall time of one run."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Time every command and print the table."""
    arguments = parser(__doc__).parse_args()
    rows = []
    for name, command in COMMANDS.items():
        seconds(command)  # once to fill the caches of the file system
        times = [seconds(command) for _ in range(REPEATS)]
        rows.append((name, median(times), min(times), max(times)))
    columns = ("command", "seconds (median)", "fastest", "slowest")
    report(Table("startup", columns, tuple(rows)), arguments.json)


if __name__ == "__main__":
    main()
