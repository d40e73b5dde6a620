"""`dlmc bench --serve`: many requests at once, and the same ones one at a time."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from dlmc.bench.load import Ask, Call, Pace, arbitrary, asked, drive, fitting
from dlmc.bench.machine import this_machine
from dlmc.bench.served import Advance, Load, ServingReport, Sharing, compare
from dlmc.bench.tasks import IN_BUNDLE, read_tasks
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import DlmcError, OverloadError
from dlmc_runtime.events import Committed, Event, Failed, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.scheduler import Limits, Scheduler
from dlmc_runtime.text import TextCodec
from dlmc_runtime.ticket import Ticket

_WARM_UP = 3  # forwards


@dataclass(frozen=True)
class ServeOptions:
    """What to ask, how often, and at once.

    Attributes:
        requests: how many.
        load: how they are sent.
        tasks: a file of questions; None for the bundle's own, or for arbitrary ids.
        lengths: ask with arbitrary ids, so many; None for the bundle's tasks or what fits.
        max_new_tokens: most tokens of an answer; None for the bundle's own.
        sampler: makes the sampler out of the bundle's own.
        given: the sampler's options that were given, for a server that has its own.
        seed: of arrivals, of arbitrary ids and of answers.
        ignore_eos: answer in full length; arbitrary ids always do.
        limits: of the scheduler.
    """

    requests: int = 32
    load: Load = field(default_factory=Load)
    tasks: Path | None = None
    lengths: tuple[int, int] | None = None
    max_new_tokens: int | None = None
    sampler: Callable[[SamplerConfig], SamplerConfig] = replace
    given: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    ignore_eos: bool = False
    limits: Limits = field(default_factory=Limits)


class Tickets:
    """Requests in a scheduler's hands."""

    def __init__(self, scheduler: Scheduler, requests: Sequence[Request]) -> None:
        self._scheduler, self._requests = scheduler, requests
        self._sent: list[Ticket | Call] = []

    def send(self, index: int, done: Callable[[], None]) -> None:
        """Submit a request; one that finds the queue full has ended.

        Raises:
            RequestError: it fits no profile.
        """

        def listen(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                done()

        try:
            self._sent.append(self._scheduler.submit(self._requests[index], listen))
        except OverloadError as error:
            now = time.monotonic()
            self._sent.append(Call(now, now, error=type(error).__name__))
            done()

    def calls(self) -> list[Call]:
        """Return what became of all that were submitted."""
        return [one if isinstance(one, Call) else _call(one) for one in self._sent]


def _call(ticket: Ticket) -> Call:
    sent, ended = ticket.submitted, ticket.ended or ticket.submitted
    try:
        result = ticket.result(0)
    except DlmcError as error:
        return Call(sent, ended, ticket.admitted, error=type(error).__name__)
    return Call(
        sent,
        ended,
        ticket.admitted,
        ticket.first_block,
        tokens=len(result.tokens),
        forwards=result.forwards,
        cached=result.cached_tokens,
        made=result.tokens,
        text=result.text,
    )


class InProcess:
    """An engine under the scheduler, and under the loop for one request.

    Args:
        generator: the engine.
        requests: what to serve.
        limits: of the scheduler; every round has one of its own, which knows no prompt yet.
    """

    def __init__(
        self, generator: Generator, requests: Sequence[Request], limits: Limits | None = None
    ) -> None:
        self.generator, self.requests = generator, requests
        self.limits = limits or Limits()

    def warm_up(self) -> None:
        """Run a few forwards, of one row and of as many as fit."""
        widest = max(profile.batch for profile in self.generator.profiles)
        for count in {1, widest}:
            few = self.requests[:count]
            for _ in islice(self.generator.events(few), _WARM_UP * len(few)):
                pass

    def alone(self) -> list[Call]:
        """Serve requests one at a time, without a scheduler."""
        return [self._one(request) for request in self.requests]

    def _one(self, request: Request) -> Call:
        began, first = time.monotonic(), None
        call = Call(began, began)
        for event in self.generator.events([request]):
            if isinstance(event, Committed) and first is None:
                first = time.monotonic()
            elif isinstance(event, Finished):
                made = event.result
                call = Call(
                    began,
                    time.monotonic(),
                    began,
                    first,
                    tokens=len(made.tokens),
                    forwards=made.forwards,
                    made=made.tokens,
                    text=made.text,
                )
        return call

    def together(self, pace: Pace) -> tuple[list[Call], Sharing | None]:
        """Serve requests as they come, under a scheduler."""
        scheduler = Scheduler(self.generator, self.limits)
        with scheduler:
            calls = drive(Tickets(scheduler, self.requests), len(self.requests), pace)
        return calls, Sharing.of(scheduler.statistics())


def bench_serving(
    root: Path, target: str, options: ServeOptions | None = None, advance: Advance = lambda _: None
) -> ServingReport:
    """Measure an engine of a bundle under load, in this process.

    Args:
        root: the bundle.
        target: the engine, by target or full name.
        options: what to ask.
        advance: called with a few words before each part of the work.

    Raises:
        UsageError: a tasks file is unreadable.
        RequestError: a request does not fit the engine.
        BundleError: the bundle or the engine's record does not load.
        EngineError: the engine does not load or fails one at a time.
    """
    options = options or ServeOptions()
    bundle = Bundle.open(root, weights=False)
    advance(f"loading {target}")
    with ExitStack() as stack:
        generator = stack.enter_context(Generator.of(bundle, target))
        asks = questions(root, bundle.manifest, generator.profiles, generator.text, options)
        requests = [_request(generator, ask, options) for ask in asks]
        server = InProcess(generator, requests, options.limits)
        advance("warming up")
        server.warm_up()
        return ServingReport(
            bundle=root.name,
            engine=bundle.engine_name(target),
            machine=this_machine(),
            max_new_tokens=requests[0].max_new_tokens,
            sampler=asdict(requests[0].sampler),
            seed=options.seed,
            found=compare(server, asks, options.load, advance),
        )


def questions(
    root: Path,
    manifest: Manifest,
    profiles: Sequence[Profile],
    codec: TextCodec | None,
    options: ServeOptions,
) -> list[Ask]:
    """Return what to ask: tasks of a file or of the bundle, or arbitrary ids.

    Raises:
        UsageError: the file of tasks is unreadable.
    """
    own = root / IN_BUNDLE
    path = options.tasks or (own if own.is_file() and options.lengths is None else None)
    if path is not None:
        return asked(read_tasks(path), codec, options.requests, options.seed)
    answer = options.max_new_tokens or manifest.max_new_tokens
    between = options.lengths or fitting(profiles, manifest.attention.block_length, answer)
    return arbitrary(manifest, between, options.requests, options.seed)


def _request(generator: Generator, ask: Ask, options: ServeOptions) -> Request:
    return generator.request(
        ask.prompt,
        max_new_tokens=options.max_new_tokens,
        sampler=options.sampler(generator.sampler),
        seed=ask.seed,
        ignore_eos=options.ignore_eos or not isinstance(ask.prompt, str),
    )
