"""What a caller can decide about a build, and the names it has on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from dlmc.targets import TARGETS
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Precision, Quantization, TargetSpec

PRECISIONS: dict[str, Precision] = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
"""Precisions by their short names, which engines carry in theirs."""

ExecutionProvider = Literal["cuda", "tensorrt"]
PROVIDERS: dict[str, ExecutionProvider] = {one: one for one in get_args(ExecutionProvider)}
QUANTIZATIONS: dict[str, Quantization] = {one: one for one in get_args(Quantization)}

_ALIASES = {**PRECISIONS, "fp32": "float32", "fp16": "float16"} | {
    v: v for v in PRECISIONS.values()
}
_COMMON = frozenset({"precision", "quantization", "calibration", "graph"})
_SHORT = {long: short for short, long in PRECISIONS.items()}


@dataclass(frozen=True)
class BuildOptions:
    """How to build an engine; every field has a flag of the same name.

    Attributes:
        precision: of the layers between the fp32 islands; None as the recipe or target has it.
        quantization: of the layers' weights, and with ``w8a8`` of activations too; likewise.
        calibration: file of prompts, one a line, that ``w8a8`` measures activations with.
        graph: an ONNX graph to build instead of the bundle's, with the same inputs and outputs,
            such as one quantized elsewhere.
        compute_capability: GPUs to build for without having one, such as ``sm89``.
        refit: leave the weights replaceable.
        version_compatible: let later versions of the library run the engine.
        hardware_compatible: let other GPUs of the same or a later generation run it.
        timing_cache: file of measured kernel times to start from and to update.
        model_cache: keep what the library compiles in the user's cache folder, to load faster.
        execution_provider: what runs the graph in ONNX Runtime on a GPU.
        cuda_graph: let ONNX Runtime capture a CUDA graph of each profile.
        log: file that takes the library's detailed log.
    """

    precision: Precision | None = None
    quantization: Quantization | None = None
    calibration: Path | None = None
    graph: Path | None = None
    compute_capability: tuple[str, ...] = ()
    refit: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False
    timing_cache: Path | None = None
    model_cache: bool = False
    execution_provider: ExecutionProvider = "cuda"
    cuda_graph: bool = False
    log: Path | None = None


def parse_precision(text: str) -> Precision:
    """Return the precision that a short or long name means.

    Raises:
        UsageError: no precision is called that.
    """
    if text not in _ALIASES:
        raise UsageError(f"--precision is {text!r}", f"choose one of {', '.join(PRECISIONS)}")
    return _ALIASES[text]


def parse_quantization(text: str) -> Quantization:
    """Return the quantization of that name.

    Raises:
        UsageError: none is called that.
    """
    if text not in QUANTIZATIONS:
        raise UsageError(f"--quantize is {text!r}", f"choose one of {', '.join(QUANTIZATIONS)}")
    return QUANTIZATIONS[text]


def parse_provider(text: str) -> ExecutionProvider:
    """Return the execution provider of that name.

    Raises:
        UsageError: none is called that.
    """
    if text not in PROVIDERS:
        hint = f"choose one of {', '.join(PROVIDERS)}"
        raise UsageError(f"--execution-provider is {text!r}", hint)
    return PROVIDERS[text]


def default_precision(target: str) -> Precision:
    """Return the precision that a target builds where none is asked for."""
    return next(iter(TARGETS[target].choices))


def check_options(
    target: str, options: BuildOptions, recipe: Sequence[TargetSpec] = ()
) -> TargetSpec:
    """Check options against what a target can do, and return what to build.

    Args:
        target: the target's name.
        options: what was asked for.
        recipe: the bundle's own entries; the first for this target says what is left open.

    Raises:
        UsageError: no such target, or it cannot do what is asked; the message lists what it can.
    """
    if target not in TARGETS:
        raise UsageError(f"no target is called {target!r}", f"choose one of {', '.join(TARGETS)}")
    own = [spec for spec in recipe if spec.target == target]
    default = own[0] if own else TargetSpec(target=target, precision=default_precision(target))
    precision = options.precision or default.precision
    quantization = options.quantization or default.quantization
    _check_able(target, precision, quantization)
    _check_flags(target, options)
    if options.calibration is not None and quantization != "w8a8":
        raise UsageError("--calibration is for w8a8", f"leave it out with {quantization} weights")
    for spec in own:
        if (spec.precision, spec.quantization) == (precision, quantization):
            return spec
    return TargetSpec(target=target, precision=precision, quantization=quantization)


def _check_able(target: str, precision: Precision, quantization: Quantization) -> None:
    able = TARGETS[target].choices
    if precision not in able:
        names = ", ".join(_SHORT[one] for one in able)
        raise UsageError(f"{target} cannot compute in {_SHORT[precision]}", f"it can in {names}")
    if quantization not in able[precision]:
        raise UsageError(
            f"{target} in {_SHORT[precision]} takes no {quantization} weights",
            f"it takes {', '.join(able[precision])}",
        )


def _check_flags(target: str, options: BuildOptions) -> None:
    for field in fields(options):
        given = getattr(options, field.name) != field.default
        if given and field.name not in {*_COMMON, *TARGETS[target].options}:
            flag = field.name.replace("_", "-")
            able = [name for name, one in TARGETS.items() if field.name in one.options]
            raise UsageError(
                f"--{flag} makes no difference to {target}",
                f"leave it out; it is for {', '.join(able)}" if able else "leave it out",
            )


def engine_name(spec: TargetSpec, options: BuildOptions) -> str:
    """Return what an engine is called: its target, then what is not the target's default."""
    parts = [spec.target]
    if spec.precision != default_precision(spec.target):
        parts.append(_SHORT[spec.precision])
    if spec.quantization != "none":
        parts.append(spec.quantization)
    if options.graph is not None:
        parts.append("graph")
    return "-".join((*parts, *options.compute_capability))
