"""What `dlmc bench --serve` checks and prints."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlmc.cli.console import note, progress, say, say_json, table
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import EngineError, UsageError

if TYPE_CHECKING:
    from dlmc.bench.served import ServingReport, Side, Tail

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)
_REQUESTS = 32
_COLUMNS = (
    "",
    "tokens/s",
    "requests/s",
    "tokens/forward",
    "latency s",
    "first block s",
    "waiting s",
    "exact",
)


@dataclass(frozen=True)
class Given:
    """Options that mean something with ``--serve`` alone; None where they are not given."""

    requests: int | None = None
    rate: float | None = None
    concurrency: int | None = None
    prompt_lengths: str | None = None
    url: str | None = None

    def check(
        self,
        *,
        serve: bool,
        others: Mapping[str, object],
        tasks: Path | None,
        target: Sequence[str] | None,
    ) -> None:
        """Refuse options in the wrong place, or together.

        Args:
            serve: whether a load is asked for.
            others: options that mean nothing to a load, None where they are not given.
            tasks: a file of questions.
            target: the engines that are named.

        Raises:
            UsageError: one of them is.
        """
        own = {f"--{key.replace('_', '-')}": value for key, value in vars(self).items()}
        wrong = [name for name, value in (others if serve else own).items() if value is not None]
        if wrong:
            problem = "means nothing to --serve" if serve else "goes with --serve only"
            raise UsageError(f"{wrong[0]} {problem}", "leave it out")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise UsageError(f"--rate is {self.rate}", "it must be above 0")
        for one, other in (
            ({"--rate": self.rate}, {"--concurrency": self.concurrency}),
            ({"--tasks": tasks}, {"--prompt-lengths": self.prompt_lengths}),
            ({"--url": self.url}, {"--target": target}),
        ):
            if serve and None not in (*one.values(), *other.values()):
                names = " and ".join((*one, *other))
                raise UsageError(f"{names} exclude each other", "give one of them")

    @property
    def lengths(self) -> tuple[int, int] | None:
        """The range of ``16-128``, or of a single number.

        Raises:
            UsageError: it is no range of whole numbers of at least 1.
        """
        text = self.prompt_lengths
        if text is None:
            return None
        found = _RANGE.fullmatch(text)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= low <= high:
            raise UsageError(f"--prompt-lengths is {text!r}", "give a range like 16-128")
        return low, high


def run(
    bundle: Path, targets: Sequence[str], load: Given, *, rounds: int, as_json: bool, **same: Any
) -> None:
    """Measure each engine, or a server, and print what was found.

    Args:
        bundle: the bundle.
        targets: engines; none for all that are built and run here.
        load: what the command line says about the load.
        rounds: how often it is measured.
        as_json: print one JSON object.
        same: the other fields of `ServeOptions`.

    Raises:
        EngineError: a request failed.
    """
    from dlmc.bench import remote, run, serving
    from dlmc.bench.served import Load

    options = serving.ServeOptions(
        requests=load.requests or _REQUESTS,
        load=Load(load.rate, load.concurrency, rounds, same["seed"]),
        lengths=load.lengths,
        **same,
    )
    with progress() as advance:
        if load.url is not None:
            reports = [remote.bench_server(bundle, load.url, options, advance)]
        else:
            names = run.records(Bundle.open(bundle, weights=False), targets)
            reports = [serving.bench_serving(bundle, name, options, advance) for name in names]
    if as_json:
        say_json({"contenders": [report.as_dict() for report in reports]})
    else:
        say("\n\n".join(map(readable, reports)))
    for report in reports:
        for warning in report.warnings:
            note(f"dlmc: warning: {warning}")
    for report in reports:
        check_outcome(report)


def check_outcome(report: "ServingReport") -> None:
    """Let a benchmark in which requests failed end as a failure.

    Raises:
        EngineError: some did.
    """
    for way in (report.found.alone, report.found.together):
        if way.failed:
            kinds = ", ".join(f"{count} {kind}" for kind, count in way.failed.items())
            raise EngineError(
                f"{sum(way.failed.values())} of {way.requests} requests to {report.engine}"
                f" failed ({kinds})",
                "send fewer at once",
            )


def readable(report: "ServingReport") -> str:
    """Return the report as a table between a few lines that say what was measured."""
    found = report.found
    pace = (
        f"{found.rate:.3g} a second on average"
        if found.rate is not None
        else f"{found.concurrency} in flight"
    )
    name = report.sampler.get("name") or "the server's sampler"
    head = (
        f"{report.bundle} on {report.engine}, {report.machine.processor},"
        f" {report.machine.cores} cores\n"
        f"{found.together.requests} requests, {pace}; at most {report.max_new_tokens} new tokens,"
        f" {name}, seed {report.seed}; p50 / p90 / p99"
    )
    rows = [_row("one at a time", found.alone), _row("together", found.together)]
    spread = (
        f" ({found.faster.p10:.2f} to {found.faster.p90:.2f} in {found.rounds} rounds)"
        if found.rounds > 1
        else ""
    )
    tail = [
        f"together {found.faster.median:.2f}x as many tokens a second{spread};"
        f" {found.same} of {found.together.requests} answers are those made alone"
    ]
    if found.together.prompt_tokens_cached:
        tail.append(f"{found.together.prompt_tokens_cached} prompt tokens came from the cache")
    if found.sharing is not None:
        shared = found.sharing
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(shared.forwards.items()))
        tail.append(
            f"{shared.count} forwards ({kinds}), {shared.occupancy:.0%} of their rows in use;"
            f" the scheduler's own time is {1e3 * shared.own_seconds:.2g} ms a forward,"
            f" {shared.own_share:.1%}"
        )
    return f"{head}\n\n{table(rows, _COLUMNS)}\n\n" + "\n".join(tail)


def _row(name: str, way: "Side") -> list[object]:
    return [
        name,
        f"{way.tokens_per_second:.3g}",
        f"{way.requests_per_second:.3g}",
        f"{way.tokens_per_forward:.2f}",
        _tail(way.latency),
        _tail(way.first_block),
        _tail(way.waiting),
        f"{way.exact} of {way.asked}" if way.asked else "-",
    ]


def _tail(seconds: "Tail | None") -> str:
    if seconds is None:
        return "-"
    return " / ".join(f"{value:.3g}" for value in (seconds.p50, seconds.p90, seconds.p99))
