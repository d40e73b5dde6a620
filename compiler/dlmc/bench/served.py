"""Requests served one at a time and together, and what both have cost."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from dlmc.bench.load import Ask, Call, InFlight, Pace, Poisson
from dlmc.bench.machine import Machine, Noise, Watch
from dlmc.bench.spread import Spread
from dlmc_runtime.statistics import Statistics

_BUSY = 2.0  # default rate, in what one at a time serves

Advance = Callable[[str], object]


@dataclass(frozen=True)
class Tail:
    """Seconds of many requests: their middle, and what the unlucky ones wait."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Tail | None":
        """Summarize some values; None for none."""
        return cls(*map(float, np.percentile(seconds, (50, 90, 99)))) if seconds else None


@dataclass(frozen=True)
class Side:
    """Requests that were served in one way, over all rounds.

    Attributes:
        requests: how many were sent.
        failed: how many came to an error, by its kind.
        seconds: from the first that was sent to the last end, added up over rounds.
        tokens: of all answers.
        prompt_tokens_cached: of all prompts, left in the cache by earlier requests.
        tokens_per_second: tokens over seconds.
        requests_per_second: answers over seconds.
        row_forwards: forwards that each request took part in, added up.
        tokens_per_forward: tokens over those (TPF).
        latency: seconds from sending to the end of the answer.
        first_block: seconds from sending until the first of the text was final.
        waiting: seconds from sending to the first forward; None where nobody tells.
        asked: how many questions have one right answer.
        exact: how many answers were exactly that.
    """

    requests: int
    failed: dict[str, int]
    seconds: float
    tokens: int
    prompt_tokens_cached: int
    tokens_per_second: float
    requests_per_second: float
    row_forwards: int
    tokens_per_forward: float
    latency: Tail | None
    first_block: Tail | None
    waiting: Tail | None
    asked: int
    exact: int

    @classmethod
    def of(cls, rounds: Sequence[Sequence[Call]], asks: Sequence[Ask]) -> "Side":
        """Summarize rounds of the same requests, at least one of each."""
        everything = [call for calls in rounds for call in calls]
        good = [call for call in everything if not call.error]
        seconds = sum(
            max(call.ended for call in calls) - min(call.sent for call in calls) for calls in rounds
        )
        tokens, forwards = sum(c.tokens for c in good), sum(c.forwards for c in good)
        marked = [
            (ask.answer, call)
            for calls in rounds
            for ask, call in zip(asks, calls, strict=True)
            if ask.answer is not None
        ]
        return cls(
            requests=len(everything),
            failed=dict(Counter(call.error for call in everything if call.error)),
            seconds=seconds,
            tokens=tokens,
            prompt_tokens_cached=sum(call.cached for call in good),
            tokens_per_second=tokens / seconds if seconds else 0.0,
            requests_per_second=len(good) / seconds if seconds else 0.0,
            row_forwards=forwards,
            tokens_per_forward=tokens / forwards if forwards else 0.0,
            latency=Tail.of([call.ended - call.sent for call in good]),
            first_block=Tail.of(_since(good, [call.first_block for call in good])),
            waiting=Tail.of(_since(good, [call.admitted for call in good])),
            asked=len(marked),
            exact=sum(not call.error and call.text == answer for answer, call in marked),
        )


def _since(calls: Sequence[Call], moments: Sequence[float | None]) -> list[float]:
    """Return the seconds from sending to a moment, of those that had one."""
    pairs = zip(calls, moments, strict=True)
    return [moment - call.sent for call, moment in pairs if moment is not None]


@dataclass(frozen=True)
class Sharing:
    """How requests shared forwards.

    Attributes:
        forwards: engine runs by what they were for.
        rows: rows that took part in them, all together.
        room: rows that they had room for.
        forward_seconds: time inside the engine.
        busy_seconds: time in which there was something to do.
    """

    forwards: dict[str, int]
    rows: int
    room: int
    forward_seconds: float
    busy_seconds: float

    @classmethod
    def of(cls, counted: Statistics) -> "Sharing":
        """Read a scheduler's numbers."""
        return cls(
            dict(counted.forwards),
            counted.rows_fed,
            counted.slots_fed,
            counted.forward_seconds,
            counted.busy_seconds,
        )

    @classmethod
    def sum(cls, rounds: Sequence["Sharing | None"]) -> "Sharing | None":
        """Add up rounds; None where one is missing."""
        known = [one for one in rounds if one is not None]
        if len(known) < len(rounds):
            return None
        forwards: Counter[str] = Counter()
        for one in known:
            forwards.update(one.forwards)
        return cls(
            dict(forwards),
            sum(one.rows for one in known),
            sum(one.room for one in known),
            sum(one.forward_seconds for one in known),
            sum(one.busy_seconds for one in known),
        )

    def since(self, before: "Sharing") -> "Sharing":
        """Return what was added since ``before``."""
        kinds = {kind: n - before.forwards.get(kind, 0) for kind, n in self.forwards.items()}
        return Sharing(
            {kind: n for kind, n in kinds.items() if n},
            self.rows - before.rows,
            self.room - before.room,
            self.forward_seconds - before.forward_seconds,
            self.busy_seconds - before.busy_seconds,
        )

    @property
    def count(self) -> int:
        """Engine runs."""
        return sum(self.forwards.values())

    @property
    def occupancy(self) -> float:
        """Share of the rows that forwards had room for that took part."""
        return self.rows / self.room if self.room else 0.0

    @property
    def own_share(self) -> float:
        """Share of the busy time outside the engine."""
        return 1 - self.forward_seconds / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def own_seconds(self) -> float:
        """Seconds outside the engine for each forward."""
        return (self.busy_seconds - self.forward_seconds) / self.count if self.count else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            **asdict(self),
            "occupancy": self.occupancy,
            "own_share": self.own_share,
            "own_seconds": self.own_seconds,
        }


@dataclass(frozen=True)
class Load:
    """How requests are sent.

    Attributes:
        rate: so many a second on average, at times that know nothing of one another (Poisson);
            None for twice as many as are served one at a time.
        concurrency: as soon as fewer than so many are in flight, instead.
        rounds: how often all of it is measured, the two ways in turns.
        seed: of the times.
    """

    rate: float | None = None
    concurrency: int | None = None
    rounds: int = 1
    seed: int = 0

    def pace(self, rate: float, turn: int) -> Pace:
        """Return when requests of a round are due."""
        if self.concurrency is not None:
            return InFlight(self.concurrency)
        return Poisson(rate, self.seed + turn)


class Server(Protocol):
    """Whoever serves the same requests in two ways."""

    def alone(self) -> list[Call]:
        """Serve them one at a time."""
        ...

    def together(self, pace: Pace) -> tuple[list[Call], Sharing | None]:
        """Serve them as they come."""
        ...


@dataclass(frozen=True)
class Comparison:
    """The two ways, side by side.

    Attributes:
        rate: requests a second that were sent, on average; None in a closed loop.
        concurrency: requests in flight; None in an open one.
        rounds: how often both were measured.
        noise: what else ran meanwhile.
        alone: one at a time.
        together: as they came.
        sharing: what a scheduler tells about forwards; None where a server does not.
        same: answers of all rounds that are those made alone.
        ratios: tokens a second together over alone, by round.
    """

    rate: float | None
    concurrency: int | None
    rounds: int
    noise: Noise
    alone: Side
    together: Side
    sharing: Sharing | None
    same: int
    ratios: tuple[float, ...]

    @property
    def faster(self) -> Spread:
        """Summary of the ratios."""
        return Spread.of(self.ratios)


def compare(
    server: Server, asks: Sequence[Ask], load: Load, advance: Advance = lambda _: None
) -> Comparison:
    """Let a server serve requests one at a time and as they come, in turns.

    Args:
        server: serves them.
        asks: what is asked.
        load: how they are sent.
        advance: called with a few words before each part of the work.
    """
    singles: list[list[Call]] = []
    shared: list[list[Call]] = []
    told: list[Sharing | None] = []
    rate = load.rate
    with Watch() as watch:
        for turn in range(load.rounds):
            advance(f"one at a time, round {turn + 1} of {load.rounds}")
            singles.append(server.alone())
            if rate is None:
                rate = max(_BUSY * Side.of(singles, asks).requests_per_second, 1e-3)
            advance(f"together, round {turn + 1} of {load.rounds}")
            calls, sharing = server.together(load.pace(rate, turn))
            shared.append(calls)
            told.append(sharing)
    rounds = [*zip(singles, shared, strict=True)]
    return Comparison(
        rate=rate if load.concurrency is None else None,
        concurrency=load.concurrency,
        rounds=load.rounds,
        noise=watch.noise,
        alone=Side.of(singles, asks),
        together=Side.of(shared, asks),
        sharing=Sharing.sum(told),
        same=sum(
            one.made == two.made
            for ours, theirs in rounds
            for one, two in zip(ours, theirs, strict=True)
            if not (one.error or two.error)
        ),
        ratios=tuple(
            _ratio(Side.of([ours], asks), Side.of([theirs], asks)) for ours, theirs in rounds
        ),
    )


def _ratio(alone: Side, together: Side) -> float:
    before = alone.tokens_per_second
    return together.tokens_per_second / before if before else 0.0


@dataclass(frozen=True)
class ServingReport:
    """What an engine or a server does under load.

    Attributes:
        bundle: its folder's name.
        engine: full name, or a server's address.
        machine: where it was measured.
        max_new_tokens: most tokens of an answer.
        sampler: how tokens were made, as far as it is known.
        seed: of everything random.
        found: what was found.
    """

    bundle: str
    engine: str
    machine: Machine
    max_new_tokens: int
    sampler: dict[str, Any]
    seed: int
    found: Comparison

    @property
    def warnings(self) -> list[str]:
        """Sentences about why the numbers deserve mistrust."""
        return [self.found.noise.warning] if self.found.noise.warning else []

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        data = asdict(self)
        sharing = self.found.sharing
        data["found"]["faster"] = asdict(self.found.faster)
        data["found"]["sharing"] = None if sharing is None else sharing.as_dict()
        return {**data, "warnings": self.warnings}
