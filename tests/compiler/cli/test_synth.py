from pathlib import Path

import pytest

from dlmc.checkpoint import Checkpoint
from dlmc.cli.app import run

SMALL = ["--layers", "1", "--hidden", "32", "--heads", "2", "--vocab", "300", "--dtype", "float32"]


def test_writes_a_checkpoint_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    output = tmp_path / "synthetic"
    assert run(["synth", "llada-8b-instruct", "-o", str(output), *SMALL, "--seed", "3"]) == 0
    printed = capsys.readouterr()
    assert "llada: 1 layers x 32, 2/2 heads of 16" in printed.out
    assert "weights in float32, seed 3" in printed.out
    assert printed.err == ""
    assert {where.dtype for where in Checkpoint.open(output).tensors.values()} == {"F32"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-recipe", "-o", "x"],
        ["llada-8b-instruct"],
        ["llada-8b-instruct", "-o", "x", "--layers", "0"],
        ["llada-8b-instruct", "-o", "x", "--dtype", "int8"],
        ["llada-8b-instruct", "-o", "x", "--vocab", "100"],
        ["llada-8b-instruct", "-o", "."],
    ],
)
def test_mistakes_end_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
):
    monkeypatch.chdir(tmp_path)
    assert run(["synth", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
