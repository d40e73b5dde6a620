"""The program behind `make gpu-check`, as far as a machine without a GPU can tell."""

import subprocess
import sys
from pathlib import Path

import pytest

from dlmc.cli.app import VERBS
from dlmc.targets import TARGETS
from dlmc_runtime.engines import ENGINES

PROGRAM = Path(__file__).with_name("check.py")


def run(*arguments, program=PROGRAM):
    command = [sys.executable, "-I", str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def without_gpu(tmp_path):
    """The program on a machine that has no driver, whatever is here."""
    copy = tmp_path / "check.py"
    copy.write_text(PROGRAM.read_text().replace("libcuda.so.1", "no-such-library"))
    return copy


def test_a_machine_without_a_gpu_is_told_so_in_one_sentence(without_gpu, tmp_path):
    done = run("--venv", str(tmp_path / "venv"), program=without_gpu)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("gpu-check: no NVIDIA GPU answers on this machine: run it where")
    assert not (tmp_path / "venv").exists()


def test_it_says_what_it_would_run():
    done = run("--list", "--torch", "torch==2.13.0")
    assert done.returncode == 0
    titles = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert titles.index("make room for onnxruntime-gpu") < titles.index("install onnxruntime-gpu")
    assert titles[-1] == "test"
    assert "torch==2.13.0" in done.stdout
    for name in ("tiny-llada", "tiny-sdar"):
        for target in ("tensorrt", "onnxruntime-cuda"):
            assert target in TARGETS
            assert ENGINES[target].gpu
            for verb in ("build", "validate", "run"):
                assert verb in VERBS
                assert f"{verb} {name} for {target}" in titles


def test_a_step_that_fails_ends_it(tmp_path, monkeypatch):
    import importlib.util

    spec = importlib.util.spec_from_file_location("check", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check", check)
    spec.loader.exec_module(check)
    monkeypatch.setattr(check, "gpu", lambda: "sm89")
    ran = tmp_path / "ran"
    write = (sys.executable, "-c", f"open({str(ran)!r}, 'a').write('x')")
    fail = (sys.executable, "-c", "raise SystemExit(3)")
    for order, code, count in (((write, fail, write), 1, 1), ((write, write), 0, 2)):
        ran.unlink(missing_ok=True)
        made = [check.Step("step", command) for command in order]
        monkeypatch.setattr(check, "steps", lambda *_, made=made: made)
        assert check.main(["--venv", str(tmp_path)]) == code
        assert ran.read_text() == "x" * count
