"""`dlmc validate`: a built engine against the reference."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlmc.cli.console import DEFAULT_TARGET, AsJson, BundlePath, Target, say, say_json, table
from dlmc_runtime.errors import ValidationError

if TYPE_CHECKING:
    from dlmc.validate.report import Report


def command(
    bundle: BundlePath,
    target: Target = DEFAULT_TARGET,
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
    """Compare a built engine with the reference, on states of real generations.

    Ends with status 1 where they disagree. The report is kept in the bundle.
    """
    from dlmc.validate.run import validate_bundle

    limit = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
    report = validate_bundle(bundle, target, tuple(prompt or ()), save_to=save_states, **limit)
    if as_json:
        say_json({**asdict(report), "ok": report.ok})
    else:
        say(readable(report))
    broken = [row for row in report.rows if not row.ok]
    if broken:
        raise ValidationError(
            f"{target} disagrees with {report.reference} in {broken[0].output}: {broken[0].where}",
            "do not use this engine; if the difference is harmless, raise the recipe's tolerance",
        )


def readable(report: "Report") -> str:
    """Return the report as a table under one line that says what was compared."""
    title = (
        f"{report.bundle}: {report.target} against {report.reference}, "
        f"{report.forwards} forwards of {report.prompts} prompts"
    )
    rows = [
        (
            row.output,
            "ok" if row.ok else "DIFFERENT",
            row.compared,
            f"{row.difference:.3g}",
            f"{row.tolerance:.3g}",
            row.where,
        )
        for row in report.rows
    ]
    header = ("output", "", "compared", "difference", "tolerance", "largest at")
    return f"{title}\n{table(rows, header)}"
