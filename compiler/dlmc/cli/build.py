"""`dlmc build`: an engine from a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli.console import (
    DEFAULT_TARGET,
    AsJson,
    BundlePath,
    Target,
    harmless,
    say,
    say_json,
    size,
    table,
)
from dlmc_runtime.errors import UsageError, ValidationError

if TYPE_CHECKING:
    from dlmc.targets.build import BuildPlan
    from dlmc.validate.report import Report


def command(
    bundle: BundlePath,
    target: Target = DEFAULT_TARGET,
    precision: Annotated[
        str | None,
        typer.Option(help="f32, f16 or bf16; head, norms and softmax stay in f32."),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(help="none, int8 or int4 weights, or w8a8 for int8 activations too."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts, one a line, to measure activations with."),
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes, such as 1,4.")] = None,
    block: Annotated[int | None, typer.Option(help="Positions of a denoising forward.")] = None,
    cache: Annotated[int | None, typer.Option(help="Committed positions a row can hold.")] = None,
    prefill: Annotated[
        int | None, typer.Option(help="Positions of a prefill forward; 0: no shape of its own.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Positions of a denoising forward that are predicted.")
    ] = None,
    compute_capability: Annotated[
        str | None,
        typer.Option(help="GPUs to build for without having one, such as sm89,sm120."),
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Build this ONNX graph, quantized elsewhere."),
    ] = None,
    refit: Annotated[
        bool, typer.Option("--refit", help="Leave the engine's weights replaceable.")
    ] = False,
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Let later library versions run it.")
    ] = False,
    hardware_compatible: Annotated[
        bool, typer.Option("--hardware-compatible", help="Let later GPUs run it.")
    ] = False,
    timing_cache: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Kernel times to start from and to update."),
    ] = None,
    execution_provider: Annotated[
        str, typer.Option(help="What runs the graph for onnxruntime-cuda: cuda or tensorrt.")
    ] = "cuda",
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Let onnxruntime-cuda capture its kernels once.")
    ] = False,
    model_cache: Annotated[
        bool, typer.Option("--model-cache", help="Load faster from a copy in the user's cache.")
    ] = False,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the library's detailed log here.")
    ] = None,
    validate: Annotated[
        bool,
        typer.Option("--validate/--no-validate", help="Compare the engine with the reference."),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be built.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build an engine from a bundle.

    The engine holds a list of fixed shapes (profiles): those of the bundle's recipe, except for
    what the options change. An engine that can run here is compared with the reference at once.
    """
    from dlmc.targets.build import build_engine, plan_build
    from dlmc.targets.options import (
        BuildOptions,
        parse_precision,
        parse_provider,
        parse_quantization,
    )
    from dlmc.targets.profiles import ProfileRequest

    request = ProfileRequest(parse_batch(batch), block, cache, prefill, rows)
    options = BuildOptions(
        precision=None if precision is None else parse_precision(precision),
        quantization=None if quantize is None else parse_quantization(quantize),
        calibration=calibration,
        graph=graph,
        compute_capability=tuple(compute_capability.split(",")) if compute_capability else (),
        refit=refit,
        version_compatible=version_compatible,
        hardware_compatible=hardware_compatible,
        timing_cache=timing_cache,
        execution_provider=parse_provider(execution_provider),
        cuda_graph=cuda_graph,
        model_cache=model_cache,
        log=log,
    )
    plan = plan_build(bundle, target, request, options)
    if not as_json:
        say(f"{'would build' if dry_run else 'building'} {plan.output} for {_what(plan)}")
        say(table(_rows(plan), ("profile", "batch", "block", "cache", "rows", "memory")))
    if not dry_run:
        build_engine(plan)
    found = _validated(plan) if validate and not dry_run else "not asked for"
    if as_json:
        say_json({**report(plan, built=not dry_run), "validation": _outcome(found)})
    elif not dry_run:
        good = isinstance(found, str) or found.ok
        say(f"built and {_in_words(found)}" + (f"; {_next(plan)}" if good else ""))
    if not isinstance(found, str) and not found.ok:
        raise ValidationError(
            harmless(f"{plan.name} disagrees with {found.against} in {found.failures[0]}"),
            f"do not use it; dlmc validate {bundle} --target {plan.name} --bisect says where",
        )


def _what(plan: "BuildPlan") -> str:
    quantized = "" if plan.quantization == "none" else f", {plan.quantization}"
    return f"{plan.target} in {plan.precision}{quantized}"


def _validated(plan: "BuildPlan") -> "Report | str":
    """Compare the engine with a reference on a few forwards, or say why not."""
    from dlmc.validate.built import validate_built

    return validate_built(plan.bundle, plan.name)


def _next(plan: "BuildPlan") -> str:
    return f"next: dlmc run {plan.bundle.root} --target {plan.name}"


def _in_words(found: "Report | str") -> str:
    if isinstance(found, str):
        return f"not validated ({found})"
    verdict = "agrees" if found.ok else "DISAGREES"
    return f"{verdict} with {found.against} in {found.forwards} forwards"


def _outcome(found: "Report | str") -> dict[str, Any]:
    """Return what ``--json`` says about the comparison; ``ok`` is null where there was none."""
    if isinstance(found, str):
        return {"ok": None, "reason": found}
    return {"ok": found.ok, "against": found.against, "failures": list(found.failures)}


def parse_batch(text: str | None) -> tuple[int, ...] | None:
    """Return the batch sizes of ``1,4``.

    Raises:
        UsageError: it is no list of whole numbers.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--batch is {text!r}", "give sizes like 1,4") from None


def _rows(plan: "BuildPlan") -> list[list[object]]:
    return [
        [i, p.batch, p.block, p.cache, p.rows, size(sum(found.values()))]
        for i, (p, found) in enumerate(zip(plan.profiles, plan.memory(), strict=True))
    ]


def report(plan: "BuildPlan", *, built: bool) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "name": plan.name,
        "target": plan.target,
        "precision": plan.precision,
        "quantization": plan.quantization,
        "output": str(plan.output),
        "built": built,
        "profiles": [
            {**profile.model_dump(), "memory": found}
            for profile, found in zip(plan.profiles, plan.memory(), strict=True)
        ],
    }
