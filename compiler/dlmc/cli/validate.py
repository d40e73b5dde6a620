"""`dlmc validate`: built engines against a reference."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli.console import AsJson, BundlePath, harmless, note, say, say_json, table
from dlmc_runtime.errors import UsageError, ValidationError

if TYPE_CHECKING:
    from dlmc.validate.report import Report


def command(
    bundle: BundlePath,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Target or full name of an engine; repeatable. Default: all that run."),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="torch|graph|ENGINE|FILE",
            help="Reference: torch, the bundle's graph in ONNX Runtime, an engine of the bundle, "
            "or an outputs.json that --save-states has kept.",
        ),
    ] = "torch",
    bisect: Annotated[
        bool,
        typer.Option("--bisect", help="Name the first layer that leaves the tolerance, or fail."),
    ] = False,
    layers: Annotated[
        bool,
        typer.Option("--layers/--no-layers", help="Compare every layer by itself, too."),
    ] = True,
    html: Annotated[
        bool, typer.Option("--html/--no-html", help="Also write a page with plots.")
    ] = True,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="<str>", help="Generate from this prompt; repeatable."),
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    save_states: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep inputs and reference outputs for Polygraphy."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare built engines with a reference, on states of real generations.

    Ends with status 1 where they disagree. The reports are kept in the bundle's validation folder.
    """
    if bisect and not layers:
        raise UsageError("--bisect compares layers", "leave out --no-layers")
    if prompt and against.endswith(".json"):
        raise UsageError("--prompt makes no difference to saved states", f"leave it out: {against}")
    from dlmc.validate.prompts import Wanted
    from dlmc.validate.run import Wishes, validate_bundle

    wishes = Wishes(
        engines=tuple(target or ()),
        against=against,
        wanted=Wanted(tuple(prompt or ()), max_new_tokens),
        layers=layers,
        bisect=bisect,
        page=html,
        save_to=save_states,
    )
    done = validate_bundle(bundle, wishes)
    if as_json:
        say_json({"ok": done.ok, "reports": [one.to_json() for one in done.reports]})
    else:
        say("\n\n".join(readable(report) for report in done.reports))
    for line in done.notes:
        note(harmless(line))
    broken = [report for report in done.reports if not report.ok]
    if broken:
        first = broken[0]
        raise ValidationError(
            harmless(f"{first.engine} disagrees with {first.against} in {first.failures[0]}"),
            "do not use this engine; if the difference is harmless, raise the recipe's tolerance",
        )


def readable(report: "Report") -> str:
    """Return the report as a table under one line that says what was compared."""
    title = (
        f"{report.bundle}: {report.engine} against {report.against}, "
        f"{report.forwards} forwards of {len(report.prompts)} prompts"
    )
    rows: list[tuple[Any, ...]] = [
        (
            row.output,
            "ok" if row.ok else "DIFFERENT",
            row.compared,
            row.wrong,
            f"{row.difference:.3g}",
            _allowed(row.tolerance.atol, row.tolerance.rtol),
            row.where or "",
        )
        for row in report.rows
    ]
    header = ("output", "", "compared", "wrong", "difference", "tolerance", "largest at")
    lines = [title, table(rows, header), *_layers(report)]
    lines += [f"different: {failure}" for failure in report.failures]
    return harmless("\n".join([*lines, *report.notes]))


def _allowed(atol: float, rtol: float) -> str:
    return f"{atol:g}+{rtol:g}x" if rtol else f"{atol:g}"


def _layers(report: "Report") -> list[str]:
    """Say in one line where the error enters the network."""
    layers = report.layers
    if layers is None:
        return []
    first = layers.first
    if first is None:
        return [f"no layer leaves the tolerance, compared with {layers.reference}"]
    return [
        f"{first.point} is the first to leave the tolerance, compared with {layers.reference}: "
        f"a vector by {first.error:.3g} ({layers.tolerance:g} allowed), "
        f"a feature by {first.channel:.3g} ({layers.channel_tolerance:g} allowed)"
    ]
