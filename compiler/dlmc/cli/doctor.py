"""`dlmc doctor`: which targets can build or run on this machine, and what the others need."""

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dlmc.cli.console import AsJson, say, say_json, size, table
from dlmc.targets import TARGETS
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.preflight import ThisMachine, install
from dlmc_runtime.version import __version__

# What other verbs need: the distribution and the extra that brings it.
_VERBS = {
    "torch": ("export, validate", "compile"),
    "onnx": ("export, validate", "compile"),
    "onnx-ir": ("export, validate", "compile"),
    "onnxscript": ("export, validate", "compile"),
    "safetensors": ("validate, synth", "compile"),
    "polygraphy": ("build, validate", "validate"),
    "matplotlib": ("validate, bench", "validate"),
}
_BUILDING = ("onnx", "onnx-ir")
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


def examine(target: str, gpu: str | None) -> Finding:
    """Find out what this machine can do with a target, given its GPU's compute capability."""
    kind, builder = ENGINES[target], TARGETS[target]
    found = installed(kind.distribution)
    lacking = [name for name in _BUILDING if installed(name) is None]
    blind = kind.gpu and gpu is None
    todo = []
    if found is None:
        todo.append(install(kind.distribution))
    if lacking:
        todo.append("pip install 'dlmc[compile]' to build")
    if blind:
        ahead = "builds only" if builder.ahead_of_time else "build and run it there"
        todo.append(f"no GPU answers here: {ahead}")
    able = builder.library is None or found is not None
    return Finding(
        target=target,
        build=able and not lacking and (not blind or builder.ahead_of_time),
        run=found is not None and not blind,
        library=kind.distribution,
        version=found,
        todo="; ".join(filter(None, todo)),
    )


def command(as_json: AsJson = False) -> None:
    """Say which targets can build or run on this machine, and what the others need."""
    gpu = ThisMachine().compute_capability()
    report = {
        "dlmc": __version__,
        "machine": {**machine(), "gpu": gpu},
        "targets": [asdict(examine(target, gpu)) for target in TARGETS],
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
            f"{here['cores']} cores{memory}, {here['gpu'] or 'no'} GPU",
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
