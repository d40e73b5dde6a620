"""`dlmc export`: a bundle from a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli.console import AsJson, note, say, say_json, size, table
from dlmc_runtime.errors import UsageError

if TYPE_CHECKING:
    from dlmc.export.pipeline import ExportPlan
    from dlmc_runtime.manifest import HeadVariant


def command(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="BUNDLE", help="The folder to make.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="CHECKPOINT", help="A checkpoint folder or a hub id, owner/name."),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="How to read the checkpoint, if its config does not tell.")
    ] = None,
    mask_id: Annotated[int | None, typer.Option(help="Id of the mask token.")] = None,
    block_length: Annotated[
        int | None, typer.Option(help="Positions that are denoised together.")
    ] = None,
    attention: Annotated[
        str | None, typer.Option(help="Who sees whom: full, block or context.")
    ] = None,
    shift: Annotated[
        int | None, typer.Option(help="1 if logit i predicts token i + 1, else 0.")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Best tokens the graph hands out for each position.")
    ] = None,
    emit_logits: Annotated[
        bool, typer.Option("--emit-logits", help="Hand out all logits too, for validation.")
    ] = False,
    guided: Annotated[
        bool, typer.Option("--guided", help="Let rows be combined: classifier-free guidance.")
    ] = False,
    suppress: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="Never predict this id; repeatable."),
    ] = None,
    head_part: Annotated[
        int,
        typer.Option(
            min=256,
            help="DiffusionGemma: ids that go through the head together; fewer, less memory.",
        ),
    ] = 1 << 14,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Add an adapter that each row can switch on, for drafts."
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Take defaults from this recipe (name or file).")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the hub repository.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be exported.")
    ] = False,
    no_weights: Annotated[
        bool,
        typer.Option("--no-weights", help="Write no weights, need none: to inspect, not to run."),
    ] = False,
    no_tokenizer: Annotated[
        bool, typer.Option("--no-tokenizer", help="The bundle takes token ids instead of text.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a bundle that is there already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a bundle from a checkpoint.

    The bundle links to the checkpoint's weights where the disk allows it. Nothing of the
    checkpoint is executed, and an interrupted export leaves nothing behind.
    """
    from dlmc.export.pipeline import ExportOptions, export_checkpoint, plan_export

    options = ExportOptions(
        source=checkpoint,
        output=output,
        family=family,
        mask_id=mask_id,
        block_length=block_length,
        attention=attention,
        shift=shift,
        candidates=candidates,
        variant=_variant(emit_logits=emit_logits, guided=guided),
        suppress=tuple(suppress or ()),
        head_part=head_part,
        adapter=adapter,
        recipe=recipe,
        weights=not no_weights,
        tokenizer=not no_tokenizer,
        revision=revision,
        force=force,
    )
    made: list[ExportPlan] = []

    def announce(plan: "ExportPlan") -> None:
        made.append(plan)
        _announce(plan)

    if dry_run:
        announce(plan_export(options))
    else:
        export_checkpoint(options, announce)
    _conclude(made[0], dry_run=dry_run, as_json=as_json)


def _variant(*, emit_logits: bool, guided: bool) -> "HeadVariant":
    if emit_logits and guided:
        raise UsageError(
            "a graph with --guided does not --emit-logits", "export two bundles, one of each"
        )
    return "guided" if guided else "logits" if emit_logits else "plain"


def _announce(plan: "ExportPlan") -> None:
    """Show the effective configuration before the work starts."""
    note(table(list(describe(plan).items())))
    for warning in plan.warnings:
        note(f"dlmc: warning: {warning}")


def _conclude(plan: "ExportPlan", *, dry_run: bool, as_json: bool) -> None:
    output = plan.options.output
    if as_json:
        say_json(report(plan, exported=not dry_run))
    elif dry_run:
        say(f"would export to {output}")
    elif plan.options.weights:
        say(f"exported; next: dlmc build {output}")
    else:
        say(f"exported without weights: {output}")


def _mask(token: int | None) -> str:
    return "none (random tokens)" if token is None else str(token)


def describe(plan: "ExportPlan") -> dict[str, str]:
    """Return the effective configuration, in words, by what it decides."""
    spec, denoiser = plan.spec, plan.spec.denoiser
    heads = f"{denoiser.num_attention_heads}/{denoiser.num_key_value_heads} heads"
    tied = " (head tied to the embedding)" if denoiser.tie_word_embeddings else ""
    sampler = {"name": plan.sampler.name, **plan.sampler.parameters}
    return {
        "source": " at ".join(filter(None, (plan.source, plan.revision))),
        "recipe": plan.recipe or "none",
        "family": f"{spec.family} ({spec.architecture})",
        "regime": f"{spec.regime}, blocks of {spec.block_length}, shift {spec.shift}",
        "network": f"{denoiser.num_hidden_layers} layers x {denoiser.hidden_size}, {heads} of"
        f" {denoiser.head_dim}, mlp {denoiser.intermediate_size},"
        f" vocabulary {denoiser.vocab_size}",
        "parameters": f"{plan.parameters:,}{tied}",
        "adapter": _adapter(plan),
        "weights": _weights(plan),
        "tokens": f"mask {_mask(spec.mask_id)}, stop {_ids(spec.stop_ids)}, pad {spec.pad_id},"
        f" suppressed {_ids(plan.suppressed)}",
        "head": f"{plan.options.variant}, {spec.candidates} candidates",
        "profiles": "; ".join(map(str, plan.profiles)),
        "sampler": ", ".join(f"{name} {value}" for name, value in sampler.items()),
        "text": _text(plan),
        "output": str(plan.options.output),
    }


def _ids(ids: tuple[int, ...]) -> str:
    return "+".join(map(str, ids)) or "none"


def _adapter(plan: "ExportPlan") -> str:
    denoiser = plan.spec.denoiser
    if plan.adapter is None:
        return "none"
    return f"rank {denoiser.adapter_rank}, scale {denoiser.adapter_scale:g}"


def _weights(plan: "ExportPlan") -> str:
    if not plan.options.weights:
        return f"none ({size(plan.weight_bytes)} in the checkpoint)"
    dtypes = sorted({location.dtype for location in plan.weights.values()})
    counts = {"linked if possible": len(plan.files), "written anew": len(plan.own_files)}
    files = [
        f"{count} file{'s' if count > 1 else ''}, {how}" for how, count in counts.items() if count
    ]
    return f"{size(plan.weight_bytes)} of {', '.join(dtypes)} in {' and '.join(files)}"


def _text(plan: "ExportPlan") -> str:
    if plan.text is None:
        return "no tokenizer"
    return f"tokenizer, {'chat template' if plan.text.template else 'no chat template'}"


def report(plan: "ExportPlan", *, exported: bool) -> dict[str, Any]:
    """Return what ``--json`` prints; sizes are in bytes."""
    spec = plan.spec
    return {
        "output": str(plan.options.output),
        "exported": exported,
        "source": plan.source,
        "revision": plan.revision,
        "recipe": plan.recipe,
        "family": spec.family,
        "architecture": spec.architecture,
        "regime": spec.regime,
        "block_length": spec.block_length,
        "shift": spec.shift,
        "adapter_rank": spec.denoiser.adapter_rank,
        "mask_id": spec.mask_id,
        "stop_ids": list(spec.stop_ids),
        "suppressed": list(plan.suppressed),
        "candidates": spec.candidates,
        "head": plan.options.variant,
        "parameters": plan.parameters,
        "weight_bytes": plan.weight_bytes,
        "weights": sorted({**plan.files, **plan.own_files}),
        "tokenizer": plan.text is not None,
        "profiles": [profile.model_dump() for profile in plan.profiles],
        "sampler": plan.sampler.model_dump(mode="json"),
        "max_new_tokens": plan.max_new_tokens,
        "warnings": list(plan.warnings),
    }
