"""Whether an engine fits this machine, decided before an engine library sees it."""

import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.errors import EngineError

# The GPU build of ONNX Runtime runs on the CPU too, and both must not be installed together.
_STAND_INS = {"onnxruntime": ("onnxruntime-gpu",)}


_INSTALL = {
    "onnxruntime": "pip install dlmc",
    "onnxruntime-gpu": "pip uninstall onnxruntime; "
    "pip install --force-reinstall 'onnxruntime-gpu[cuda,cudnn]' cuda-python",
    "openvino": "pip install 'dlmc[openvino]'",
    "tensorrt": "pip install 'dlmc[tensorrt]'",
    "tensorrt-rtx-cu13": "pip install 'dlmc[tensorrt-rtx]'",
}


def install(distribution: str) -> str:
    """Return the command that installs an engine library and what dlmc needs beside it."""
    return _INSTALL.get(distribution, f"pip install {distribution}")


class Machine(Protocol):
    """What an engine may ask of a machine; `ThisMachine` is the real one."""

    def library(self, distribution: str) -> str | None:
        """Return the version of an installed distribution, None where there is none."""
        ...

    def system(self) -> str:
        """Return operating system and processor, such as ``linux-x86_64``."""
        ...

    def compute_capability(self) -> str | None:
        """Return the GPU's, such as ``sm89``; None where no GPU answers."""
        ...

    def free_memory(self, *, gpu: bool) -> int | None:
        """Return the free bytes of the GPU or the host, None where unknown."""
        ...


@dataclass(frozen=True)
class ThisMachine:
    """The machine this process runs on."""

    def library(self, distribution: str) -> str | None:
        """Return the version of an installed distribution, or of one that stands in for it."""
        for name in (distribution, *_STAND_INS.get(distribution, ())):
            with suppress(PackageNotFoundError):
                return version(name)
        return None

    def system(self) -> str:
        """Return operating system and processor, such as ``linux-x86_64``."""
        return f"{platform.system()}-{platform.machine()}".lower()

    def compute_capability(self) -> str | None:
        """Return the first GPU's, such as ``sm89``; None where no GPU answers."""
        from dlmc_runtime.engines import cuda

        return cuda.compute_capability()

    def free_memory(self, *, gpu: bool) -> int | None:
        """Return the free bytes of the GPU or the host, None where unknown."""
        if gpu:
            from dlmc_runtime.engines import cuda

            return cuda.free_memory()
        try:
            text = Path("/proc/meminfo").read_text(encoding="ascii")
            lines = dict(line.split(":", 1) for line in text.splitlines())
            return int(lines["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return None


def obstacle(record: EngineRecord, machine: Machine | None = None) -> tuple[str, str] | None:
    """Return what keeps an engine from running here and what to do, or None.

    Args:
        record: the engine's record.
        machine: by default this one.
    """
    here: Machine = ThisMachine() if machine is None else machine
    needs, again = record.requires, f"build it here: dlmc build --target {record.target}"
    found = here.library(needs.library)
    if found is None:
        exact = f" {needs.library}=={needs.version}" if needs.match == "exact" else ""
        return (
            f"{record.target} needs {needs.library}, which is not installed",
            f"{install(needs.library)}{exact}",
        )
    if not _MATCHES[needs.match](found, needs.version):
        which = "that version" if needs.match == "exact" else "that version or a later one"
        return (
            f"the engine was built with {needs.library} {needs.version}, here is {found}",
            f"install {which}, or {again}",
        )
    if needs.system is not None and needs.system != here.system():
        return f"the engine was built for {needs.system}, this is {here.system()}", again
    return _gpu_obstacle(record, here, again) or _memory_obstacle(record, here)


def _numbers(text: str) -> list[int]:
    """Return the numbers of a version, to be compared one by one."""
    return [int(part) for part in re.findall(r"[0-9]+", text.partition("+")[0])]


_MATCHES: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda found, built: found == built,
    "later": lambda found, built: _numbers(found) >= _numbers(built),
    "any": lambda _found, _built: True,
}


def _gpu_obstacle(record: EngineRecord, here: Machine, again: str) -> tuple[str, str] | None:
    wanted = record.requires.compute_capabilities
    if not wanted:
        return None
    found = here.compute_capability()
    if found is None:
        return f"{record.target} needs a GPU ({', '.join(wanted)}), none answers here", (
            "run it where there is one; nvidia-smi shows what the driver sees"
        )
    newer = record.requires.newer_gpus and int(found[2:]) >= max(int(one[2:]) for one in wanted)
    if found not in wanted and not newer:
        return f"the engine was built for {', '.join(wanted)}, this GPU is {found}", again
    return None


def _memory_obstacle(record: EngineRecord, here: Machine) -> tuple[str, str] | None:
    gpu = bool(record.requires.compute_capabilities)
    free = here.free_memory(gpu=gpu)
    if free is None or record.requires.memory <= free:
        return None
    where = "the GPU has" if gpu else "this machine has"
    return (
        f"the engine needs {_gib(record.requires.memory)} of memory, {where} {_gib(free)} free",
        "free some, or build with a smaller --batch, --cache or --prefill",
    )


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def check(record: EngineRecord, machine: Machine | None = None) -> None:
    """Refuse an engine that does not fit this machine.

    Raises:
        EngineError: one sentence that says what does not fit and what to do.
    """
    found = obstacle(record, machine)
    if found is not None:
        raise EngineError(*found)
