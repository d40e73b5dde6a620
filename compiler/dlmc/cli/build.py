"""`dlmc build`: an engine from a bundle."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli.console import DEFAULT_TARGET, AsJson, BundlePath, Target, say, say_json, size, table
from dlmc_runtime.errors import UsageError

if TYPE_CHECKING:
    from dlmc.targets.build import BuildPlan


def command(
    bundle: BundlePath,
    target: Target = DEFAULT_TARGET,
    batch: Annotated[str | None, typer.Option(help="Batch sizes, such as 1,4.")] = None,
    block: Annotated[int | None, typer.Option(help="Positions of a denoising forward.")] = None,
    cache: Annotated[int | None, typer.Option(help="Committed positions a row can hold.")] = None,
    prefill: Annotated[int | None, typer.Option(help="Positions of a prefill forward.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Positions of a denoising forward that are predicted.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be built.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build an engine from a bundle.

    The engine holds a list of fixed shapes (profiles): those of the bundle's recipe, except for
    what the options change.
    """
    from dlmc.targets.build import build_engine, plan_build
    from dlmc.targets.profiles import ProfileRequest

    request = ProfileRequest(parse_batch(batch), block, cache, prefill, rows)
    plan = plan_build(bundle, target, request)
    if not as_json:
        say(f"{'would build' if dry_run else 'building'} {plan.output} for {target}")
        say(table(_rows(plan), ("profile", "batch", "block", "cache", "rows", "memory")))
    if not dry_run:
        build_engine(plan)
    if as_json:
        say_json(report(plan, built=not dry_run))
    elif not dry_run:
        say(f"built; next: dlmc run {bundle} --target {target}")


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
    from dlmc.targets.build import memory

    return [
        [i, p.batch, p.block, p.cache, p.rows, size(sum(memory(plan.bundle, p).values()))]
        for i, p in enumerate(plan.profiles)
    ]


def report(plan: "BuildPlan", *, built: bool) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    from dlmc.targets.build import memory

    return {
        "target": plan.target,
        "output": str(plan.output),
        "built": built,
        "profiles": [
            {**profile.model_dump(), "memory": memory(plan.bundle, profile)}
            for profile in plan.profiles
        ],
    }
