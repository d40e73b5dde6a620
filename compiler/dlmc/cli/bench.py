"""`dlmc bench`: engines of a bundle, timed side by side."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli import bench_serve
from dlmc.cli.console import AsJson, BundlePath, note, progress, say, say_json, size, table
from dlmc_runtime.errors import UsageError
from dlmc_runtime.samplers import SAMPLERS
from dlmc_runtime.samplers.choice import choose

if TYPE_CHECKING:
    from dlmc.bench.report import Contender, Phase, Report
    from dlmc.bench.run import BenchOptions
    from dlmc.bench.spread import Spread

BASELINES = ("torch",)
_REPEATS = 5


def command(
    bundle: BundlePath,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Which engine; repeatable. [default: all that run here]"),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="Also time the reference's loop on the same weights: torch."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="What to answer.")] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Ask with so many arbitrary tokens and ignore stop tokens."),
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    sampler: Annotated[
        str | None, typer.Option(help=f"Which one commits positions: {', '.join(SAMPLERS)}.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Forwards per block.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Commit every position at least this sure.")
    ] = None,
    factor: Annotated[
        float | None, typer.Option(help="Bound of Fast-dLLM's parallel decoding.")
    ] = None,
    block_length: Annotated[
        int | None, typer.Option(help="Positions denoised together (LLaDA only).")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the best token.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among this many best tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the tokens of this much probability.")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            help="none, prefix or dual: Fast-dLLM's caches for LLaDA, Dream and the like."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the answers, and of arbitrary tokens.")] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answer in full length.")
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Measured answers of each engine. [default: 5; rounds, 1]"),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Lines like {"prompt": …, "answer": …} to get right.'),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a picture, .svg or .png.")
    ] = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="Send many requests at once, and the same one at a time."),
    ] = False,
    requests: Annotated[
        int | None, typer.Option(min=1, help="How many, with --serve. [default: 32]")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests a second, at random times. [default: twice what one at a time serves]"
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Keep so many in flight instead.")
    ] = None,
    prompt_lengths: Annotated[
        str | None,
        typer.Option(metavar="RANGE", help="Ask with arbitrary tokens, such as 16-128."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Measure a server that runs already and serves this bundle."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time engines of a bundle: forwards, generations, memory, and what the machine allows.

    Engines take turns at the same request, so that noise meets all of them alike. Run it on an
    idle machine; it says where the machine was not.
    """
    from dlmc.bench.run import BenchOptions
    from dlmc_runtime import SamplerConfig

    only = bench_serve.Given(requests, rate, concurrency, prompt_lengths, url)
    others = {
        "--compare": compare,
        "--prompt": prompt,
        "--prompt-tokens": prompt_tokens,
        "--plot": plot,
    }
    only.check(serve=serve, others=others, tasks=tasks, target=target)
    if compare not in (None, *BASELINES):
        raise UsageError(f"--compare is {compare!r}", f"it can be {', '.join(BASELINES)}")
    if prompt is not None and prompt_tokens is not None:
        raise UsageError("--prompt and --prompt-tokens exclude each other", "give one of them")
    if prompt_tokens is not None and prompt_tokens < 1:
        raise UsageError(f"--prompt-tokens is {prompt_tokens}", "it must be at least 1")
    given = {
        "steps": steps,
        "threshold": threshold,
        "factor": factor,
        "block_length": block_length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "cache": cache,
    }
    SamplerConfig().updated(name=sampler, **given)  # a mistake is found before minutes of work
    chosen = partial(choose, name=sampler, given=given)
    same: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "sampler": chosen,
        "seed": seed,
        "ignore_eos": ignore_eos,
        "tasks": tasks,
    }
    targets = tuple(target or ())
    if serve:
        same["given"] = {**given, "sampler": sampler}
        bench_serve.run(bundle, targets, only, rounds=repeats or 1, as_json=as_json, **same)
        return
    _run(
        BenchOptions(
            targets=targets,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            repeats=repeats or _REPEATS,
            torch=compare == "torch",
            **same,
        ),
        bundle,
        plot,
        as_json=as_json,
    )


def _run(options: "BenchOptions", bundle: Path, plot: Path | None, *, as_json: bool) -> None:
    from dlmc.bench import picture
    from dlmc.bench.run import bench_bundle

    if plot is not None:
        picture.check(plot)
    with progress() as advance:
        report = bench_bundle(bundle, options, advance)
    if plot is not None:
        picture.draw(report, plot)
    if as_json:
        say_json(report.as_dict())
    else:
        say(readable(report))
    for warning in report.warnings:
        note(f"dlmc: warning: {warning}")


def readable(report: "Report") -> str:
    """Return the report as tables under a few lines that say what was measured."""
    work = report.workload
    end = ", stop tokens ignored" if work.ignore_eos else ""
    head = (
        f"{report.bundle} on {report.machine.processor}, {report.machine.cores} cores\n"
        f"{work.prompt_tokens} prompt tokens, at most {work.max_new_tokens} new ones{end}; "
        f"{work.repeats} answers each, in turns, seed {work.seed}; medians with p10 to p90"
    )
    parts = [head, _speeds(report), _forwards(report), _memory(report)]
    return "\n\n".join(part for part in (*parts, _accuracy(report)) if part)


def _spread(value: "Spread | None", digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value.median:.{digits}g} ({value.p10:.{digits}g} to {value.p90:.{digits}g})"


def _speeds(report: "Report") -> str:
    def row(one: "Contender") -> list[object]:
        speed = one.speed
        made = " + ".join(f"{count} {kind}" for kind, count in speed.forwards.items())
        return [
            one.name,
            _spread(speed.useful_per_second),
            f"{speed.computed_per_second.median:.3g}",
            made,
            f"{speed.tokens_per_forward:.2f}",
            _spread(speed.first_block.scaled(1e3)),
            f"{speed.own_share.median:.1%}",
            "-" if one.faster is None else f"{one.faster:.2f}x",
        ]

    header = (
        "engine",
        "tokens/s",
        "computed/s",
        "forwards",
        "tokens/forward",
        "first block ms",
        "own share",
        "of torch",
    )
    rows = [row(one) for one in report.contenders]
    return f"{report.workload.pace}:\n{table(rows, header)}"


def _forwards(report: "Report") -> str:
    def row(name: str, phase: "Phase") -> list[object]:
        floor, ratio = phase.floor, phase.ratio
        alone = None if phase.alone is None else phase.alone.scaled(1e3)
        in_loop = None if phase.in_loop is None else phase.in_loop.scaled(1e3)
        return [
            name,
            phase.kind,
            phase.profile or "",
            _spread(in_loop),
            _spread(alone),
            "-" if alone is None else f"{alone.minimum:.3g}",
            "-" if floor is None else f"{1e3 * floor.seconds:.3g} ({floor.bound})",
            "-" if ratio is None else f"{ratio:.1f}x",
        ]

    rows = [row(one.name, phase) for one in report.contenders for phase in one.phases]
    header = (
        "engine",
        "forward",
        "profile",
        "in the loop ms",
        "alone ms",
        "fastest",
        "floor ms",
        "above it",
    )
    how = {
        f"{one.rates.flops / 1e9:.0f} GFLOP/s and {one.rates.bandwidth / 1e9:.1f} GB/s"
        f" ({one.rates.how})"
        for one in report.contenders
        if one.rates is not None
    }
    return "\n".join((table(rows, header), *(f"floor: {words}" for words in sorted(how))))


def _memory(report: "Report") -> str:
    rows = [
        [
            one.name,
            one.precision,
            one.quantization,
            size(one.weights),
            size(one.footprint.load),
            size(one.footprint.peak),
            f"{one.footprint.peak / one.weights:.2f}x",
            size(one.footprint.anonymous),
            f"{one.footprint.seconds:.2f}",
        ]
        for one in report.contenders
        if one.footprint is not None
    ]
    header = (
        "engine",
        "precision",
        "quantized",
        "weights",
        "peak loading",
        "peak running",
        "of weights",
        "not files",
        "load s",
    )
    return table(rows, header) if rows else ""


def _accuracy(report: "Report") -> str:
    rows = [
        [
            one.name,
            score.task,
            f"{score.exact} of {score.asked}",
            f"{score.accuracy:.1%}",
            f"{score.tokens_per_forward:.2f}",
            f"{score.tokens_per_second:.1f}",
        ]
        for one in report.contenders
        for score in one.scores
    ]
    header = ("engine", "task", "exact", "", "tokens/forward", "tokens/s")
    return f"{report.workload.pace}:\n{table(rows, header)}" if rows else ""
