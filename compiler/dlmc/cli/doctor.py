"""`dlmc doctor`: which targets can build or run on this machine, and what the others need."""

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dlmc.cli.console import AsJson, say, say_json, size, table
from dlmc.targets import TARGETS
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.version import __version__

# Every target of the design and the distribution that carries its library.
_TARGETS = {
    "onnxruntime-cpu": "onnxruntime",
    "onnxruntime-cuda": "onnxruntime-gpu",
    "openvino-cpu": "openvino",
    "tensorrt": "tensorrt",
    "tensorrt-rtx": "tensorrt-rtx-cu13",
}
# What other verbs need: the distribution and the extra that brings it.
_VERBS = {
    "torch": ("export, validate", "compile"),
    "onnx": ("export, validate", "compile"),
    "onnx-ir": ("export, validate", "compile"),
    "onnxscript": ("export, validate", "compile"),
    "safetensors": ("validate, synth", "compile"),
    "polygraphy": ("validate", "validate"),
}
_BASE = ("numpy", "onnxruntime", "tokenizers", "huggingface-hub")


@dataclass(frozen=True)
class Finding:
    """What this machine can do with a target; ``todo`` is empty where it can do everything."""

    target: str
    build: bool
    run: bool
    library: str
    version: str | None
    todo: str


def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def examine(target: str) -> Finding:
    """Find out what this machine can do with a target."""
    library = _TARGETS[target]
    found = installed(library)
    known = target in TARGETS or target in ENGINES
    if not known:
        todo = "not supported by this version of dlmc"
    else:
        todo = "" if found else f"pip install {library}"
    return Finding(
        target=target,
        build=target in TARGETS and found is not None,
        run=target in ENGINES and found is not None,
        library=library,
        version=found,
        todo=todo,
    )


def command(as_json: AsJson = False) -> None:
    """Say which targets can build or run on this machine, and what the others need."""
    report = {
        "dlmc": __version__,
        "machine": machine(),
        "targets": [asdict(examine(target)) for target in _TARGETS],
        "packages": {name: installed(name) for name in (*_BASE, *_VERBS)},
    }
    if as_json:
        say_json(report)
    else:
        say(_readable(report))


def machine() -> dict[str, Any]:
    """Return the machine in words and numbers; memory is in bytes, None where unknown."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else None
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": usable,
        "memory": memory,
    }


def _readable(report: dict[str, Any]) -> str:
    here = report["machine"]
    memory = "" if here["memory"] is None else f", {size(here['memory'])} of memory"
    targets = [
        (one["target"], _yes(one["build"]), _yes(one["run"]), one["version"] or "-", one["todo"])
        for one in report["targets"]
    ]
    packages = [
        (name, found or "-", *(_missing(name) if found is None else ("",)))
        for name, found in report["packages"].items()
    ]
    return "\n\n".join(
        (
            f"dlmc {report['dlmc']} on Python {here['python']}, {here['system']}, "
            f"{here['cores']} cores{memory}",
            table(targets, ("target", "build", "run", "library", "")),
            table(packages, ("package", "version", "")),
        )
    )


def _yes(able: bool) -> str:
    return "yes" if able else "no"


def _missing(name: str) -> tuple[str]:
    """Say which verbs lack a package and how to get it."""
    verbs, extra = _VERBS.get(name, ("everything", ""))
    what = f"dlmc[{extra}]" if extra else "dlmc"
    return (f"{verbs} needs it: pip install '{what}'",)
