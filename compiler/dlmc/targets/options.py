"""What a caller can decide about a build, and the names it has on the command line."""

from dataclasses import dataclass, fields
from pathlib import Path

from dlmc.targets import TARGETS
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Precision, Quantization

PRECISIONS: dict[str, Precision] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""Precisions by their short names, which engines carry in theirs."""

_ALIASES = {**PRECISIONS, "fp32": "float32", "fp16": "float16"} | {
    v: v for v in PRECISIONS.values()
}
_SHORT = {long: short for short, long in PRECISIONS.items()}


@dataclass(frozen=True)
class BuildOptions:
    """How to build an engine; every field has a flag of the same name.

    Attributes:
        precision: of the layers between the fp32 islands; None is the target's default.
        quantization: of the layers' weights, and with ``w8a8`` of activations too.
        graph: an ONNX graph to build instead of the bundle's, with the same inputs and outputs,
            such as one quantized elsewhere.
        compute_capability: GPUs to build for without having one, such as ``sm89``.
        refit: leave the weights replaceable.
        version_compatible: let later versions of the library run the engine.
        hardware_compatible: let other GPUs of the same or a later generation run it.
        timing_cache: file of measured kernel times to start from and to update.
        model_cache: keep what the library compiles in the user's cache folder, to load faster.
        log: file that takes the library's detailed log.
    """

    precision: Precision | None = None
    quantization: Quantization = "none"
    graph: Path | None = None
    compute_capability: tuple[str, ...] = ()
    refit: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False
    timing_cache: Path | None = None
    model_cache: bool = False
    log: Path | None = None


def parse_precision(text: str) -> Precision:
    """Return the precision that a short or long name means.

    Raises:
        UsageError: no precision is called that.
    """
    if text not in _ALIASES:
        raise UsageError(f"--precision is {text!r}", f"choose one of {', '.join(PRECISIONS)}")
    return _ALIASES[text]


def default_precision(target: str) -> Precision:
    """Return the precision that a target builds where none is asked for."""
    return next(iter(TARGETS[target].choices))


def check_options(target: str, options: BuildOptions) -> Precision:
    """Check options against what a target can do and return the precision to build.

    Raises:
        UsageError: no such target, or it cannot do what is asked; the message lists what it can.
    """
    if target not in TARGETS:
        raise UsageError(f"no target is called {target!r}", f"choose one of {', '.join(TARGETS)}")
    able = TARGETS[target]
    precision = options.precision or default_precision(target)
    if precision not in able.choices:
        names = ", ".join(_SHORT[one] for one in able.choices)
        raise UsageError(f"{target} cannot compute in {_SHORT[precision]}", f"it can in {names}")
    if options.quantization not in able.choices[precision]:
        raise UsageError(
            f"{target} in {_SHORT[precision]} takes no {options.quantization} weights",
            f"it takes {', '.join(able.choices[precision])}",
        )
    for field in fields(options):
        given = getattr(options, field.name) != field.default
        if given and field.name not in {"precision", "quantization", *able.options}:
            flag = field.name.replace("_", "-")
            able_too = [name for name, one in TARGETS.items() if field.name in one.options]
            raise UsageError(
                f"--{flag} makes no difference to {target}",
                f"leave it out; it is for {', '.join(able_too)}" if able_too else "leave it out",
            )
    return precision


def engine_name(target: str, precision: Precision, options: BuildOptions) -> str:
    """Return what an engine is called: its target, then what is not the target's default."""
    parts = [target]
    if precision != default_precision(target):
        parts.append(_SHORT[precision])
    if options.quantization != "none":
        parts.append(options.quantization)
    if options.graph is not None:
        parts.append("graph")
    return "-".join((*parts, *options.compute_capability))
