"""Measuring in a process of its own, so that nothing else is in it."""

import json
import subprocess
import sys
from typing import Any

from dlmc_runtime.errors import EngineError


def run_child(module: str, *arguments: str) -> Any:
    """Run a module of this package with this Python and return the JSON it prints last.

    Raises:
        EngineError: it failed; the message is the last line of what it said.
    """
    command = [module, *arguments]
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    lines = (done.stderr if done.returncode else done.stdout).splitlines()
    last = lines[-1] if lines else ""
    if done.returncode or not last:
        raise EngineError(f"{' '.join(command)} failed ({last or 'no word why'})")
    return json.loads(last)
