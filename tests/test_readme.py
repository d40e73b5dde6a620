"""The commands of the README and the walk-through are run as they stand.

A block of bash or Python carries a mark, an HTML comment before it: `run`, or `shown: REASON`. A
text block marked `prints` holds lines that the block before it must print.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "docs/walkthrough.md",
    "docs/targets.md",
    "docs/validation.md",
    "docs/bench.md",
    "docs/serving.md",
    "docs/structured-output.md",
)
_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_RUNNERS = {"bash": ("bash", "-euo", "pipefail", "-c"), "python": (sys.executable, "-c")}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the line it starts at."""

    language: str
    mark: str
    code: str
    line: int


def blocks(page):
    """Return the fenced blocks of a page in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            found["mark"] or "",
            found["code"],
            text[: found.start()].count("\n") + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


@pytest.fixture
def workspace(tmp_path):
    """A folder that holds the shipped checkpoints, as a clone does."""
    for checkpoint in ("tiny-llada", "tiny-sdar", "tiny-gemma"):
        source = ROOT / "artifacts" / checkpoint
        shutil.copytree(source, tmp_path / "artifacts" / checkpoint)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page):
    unmarked = [
        f"line {block.line}"
        for block in blocks(page)
        if block.language in _RUNNERS and block.mark != "run" and block.mark[:7] != "shown: "
    ]
    assert not unmarked


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_run_in_order(page, workspace):
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }
    output = ""
    for block in blocks(page):
        where = f"{page}, line {block.line}"
        if block.mark == "run":
            done = subprocess.run(
                [*_RUNNERS[block.language], block.code],
                cwd=workspace,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{where}: {done.stderr}"
            output = done.stdout
        elif block.mark == "prints":
            missing = [line for line in block.code.splitlines() if line not in output]
            assert not missing, f"{where}: printed {output}"
