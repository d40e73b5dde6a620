"""Everything that CI cannot run: `make gpu-check`, on a machine with Python and an NVIDIA driver.

Installs into an environment of its own, since onnxruntime-gpu and onnxruntime share their files;
exports tiny-llada and tiny-sdar; builds, validates and runs them for every target that has a GPU;
and runs the tests that need one. Only the standard library is needed to start it.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TARGETS = ("tensorrt", "onnxruntime-cuda")
TINY = ("tiny-llada", "tiny-sdar")
QUESTION = "458+386=?"
EXTRAS = "compile,validate,tensorrt,cuda"
TOOLS = ("hypothesis>=6.130", "pytest>=8.4")
GPU_RUNTIME = "onnxruntime-gpu[cuda,cudnn]"
_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


@dataclass(frozen=True)
class Step:
    """A command, and why it is run."""

    title: str
    command: tuple[str, ...]


def gpu() -> str | None:
    """Return the first GPU's capability, such as ``sm89``, asking the driver; None without one."""
    for name in _DRIVERS:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            continue
        driver.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), 0)
        return f"sm{major.value}{minor.value}"
    return None


def steps(environment: Path, torch: str) -> Iterator[Step]:
    """Yield what is run, in order."""
    folder = environment / ("Scripts" if os.name == "nt" else "bin")
    python, dlmc = str(folder / "python"), str(folder / "dlmc")
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    yield Step("install torch", (*pip, "install", torch))
    yield Step("install dlmc", (*pip, "install", "-e", f"{ROOT}[{EXTRAS}]", *TOOLS))
    yield Step("make room for onnxruntime-gpu", (*pip, "uninstall", "--yes", "onnxruntime"))
    yield Step("install onnxruntime-gpu", (*pip, "install", "--force-reinstall", GPU_RUNTIME))
    yield Step("what is here", (dlmc, "doctor"))
    for name in TINY:
        bundle = str(ROOT / "build" / "gpu" / name)
        source = str(ROOT / "artifacts" / name)
        export = ("export", source, "-o", bundle, "--recipe", f"tiny/{name}", "--force")
        yield Step(f"export {name}", (dlmc, *export))
        for target in TARGETS:
            where = f"{name} for {target}"
            yield Step(f"build {where}", (dlmc, "build", bundle, "--target", target))
            yield Step(f"validate {where}", (dlmc, "validate", bundle, "--target", target))
            run = ("run", bundle, "--target", target, "--stats", QUESTION)
            yield Step(f"run {where}", (dlmc, *run))
    # Libraries that CI does not have may warn about themselves.
    pytest = (python, "-m", "pytest", "-W", "default", "-m", "gpu")
    yield Step("test", (*pytest, str(ROOT / "tests" / "gpu")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all steps and return the exit status: 0 where all went well, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-gpu", help="where to install")
    parser.add_argument("--torch", default="torch", help="what to install for the reference")
    parser.add_argument("--list", action="store_true", help="only say what would be run")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        for step in steps(chosen.venv, chosen.torch):
            sys.stdout.write(f"{step.title}: {' '.join(step.command)}\n")
        return 0
    found = gpu()
    if found is None:
        sys.stderr.write(
            "gpu-check: no NVIDIA GPU answers on this machine: run it where nvidia-smi shows one\n"
        )
        return 2
    sys.stdout.write(f"the GPU is {found}\n")
    if not chosen.venv.exists():
        venv.create(chosen.venv, with_pip=True)
    for step in steps(chosen.venv, chosen.torch):
        sys.stdout.write(f"== {step.title}\n")
        sys.stdout.flush()
        code = subprocess.run(step.command, cwd=ROOT, check=False).returncode
        if code:
            sys.stderr.write(f"gpu-check: '{step.title}' failed with status {code}\n")
            return 1
    sys.stdout.write("all went well\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
