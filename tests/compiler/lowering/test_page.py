"""What docs/quantization.md shows works, and its table is what the benchmark found."""

import json
import re
import shutil
from pathlib import Path

import pytest

from dlmc.lowering.calibrate import Feeds
from dlmc_runtime.bundle import Bundle


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "quantization.md").read_text(encoding="utf-8")


def test_its_programs_run(
    page: str, sdar: Bundle, sdar_states: list[Feeds], tmp_path: Path, monkeypatch, capsys
):
    """``sdar_states`` has built the engine that the second program loads."""
    shutil.copytree(sdar.root, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "quantization.md", "exec"), {})  # noqa: S102
    assert "float16" in capsys.readouterr().out
    assert (tmp_path / "w8a8" / "denoiser.onnx").exists()
    assert (tmp_path / "states" / "states-0.npz").exists()


def test_its_table_is_the_benchmarks(page: str, repository: Path):
    result = repository / "benchmarks" / "results" / "lowering_error.json"
    rows = json.loads(result.read_text(encoding="utf-8"))["rows"]
    _, table = page.split("| graph | tiny-llada |")
    shown = re.findall(r"\| ([\d.]+) % \| ([\d.]+) ", table.split("\n\n")[0])
    found = {
        checkpoint: [row for row in rows if checkpoint in _cells(row)]
        for checkpoint in ("tiny-llada", "tiny-sdar")
    }
    pairs = zip(found["tiny-llada"], found["tiny-sdar"], strict=True)
    measured = [_cells(row)[-2:] for pair in pairs for row in pair]
    assert len(shown) == len(measured) > 0
    for (same, error), (same_found, error_found) in zip(shown, measured, strict=True):
        assert float(same) == pytest.approx(100 * same_found, abs=0.05)
        assert float(error) == pytest.approx(error_found, rel=0.06, abs=5e-4)


def _cells(row):
    return list(row.values()) if isinstance(row, dict) else row
