"""Whole generations, side by side: several contestants take turns at the same request."""

import time
from collections.abc import Generator as Turns
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dlmc.bench.machine import settle
from dlmc.bench.timing import Forward, TimingEngine
from dlmc_runtime.events import Denoised, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.row import Request


@dataclass(frozen=True)
class Answer:
    """What a contestant made: tokens up to and without a stop id, and its forwards."""

    tokens: tuple[int, ...]
    forwards: tuple[Forward, ...]


@dataclass(frozen=True)
class Generation:
    """One answer and what it cost.

    Attributes:
        answer: what was made.
        seconds: from the first forward to the last, pauses for others left out.
        first_block: seconds until every token of the answer's first block was final.
        turns: seconds of each turn.
    """

    answer: Answer
    seconds: float
    first_block: float
    turns: tuple[float, ...]

    @property
    def tokens_per_forward(self) -> float:
        """Tokens of the answer over forwards of every kind (TPF)."""
        return len(self.answer.tokens) / max(len(self.answer.forwards), 1)

    @property
    def useful_per_second(self) -> float:
        """Tokens of the answer a second."""
        return len(self.answer.tokens) / self.seconds

    @property
    def computed_per_second(self) -> float:
        """Positions that went through the network a second, padding included."""
        return sum(forward.positions for forward in self.answer.forwards) / self.seconds

    @property
    def own_share(self) -> float:
        """Share of the time that was not spent in the network: loop, sampler, text."""
        return 1 - sum(forward.seconds for forward in self.answer.forwards) / self.seconds


class Contestant(Protocol):
    """Whatever makes answers, one forward a turn."""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        ...

    def turns(self, request: Request) -> Turns[bool, None, Answer]:
        """Yield after each denoising whether the answer's first block is final."""
        ...


class EngineContestant:
    """An engine under the runtime's own loop."""

    def __init__(self, name: str, generator: Generator) -> None:
        self.name = name
        self.engine = TimingEngine(generator.engine)
        self.generator = Generator(self.engine, generator.text)

    def turns(self, request: Request) -> Turns[bool, None, Answer]:
        """Yield after each denoising whether the answer's first block is final."""
        self.engine.forwards.clear()
        end: int | None = None
        tokens: tuple[int, ...] = ()
        for event in self.generator.events([request]):
            if isinstance(event, Denoised):
                end = event.end if end is None else end
                yield not event.masked[:end].any()
            elif isinstance(event, Finished):
                tokens = event.result.tokens
        return Answer(tokens, tuple(self.engine.forwards))


class Run:
    """One contestant at one request; `advance` lets it go on."""

    def __init__(self, contestant: Contestant, request: Request) -> None:
        self._turns = contestant.turns(request)
        self.answer: Answer | None = None
        self.spent: list[float] = []
        self.first_block: float | None = None

    def advance(self, count: int | None = None) -> None:
        """Make ``count`` denoising forwards and what lies between; all that are left if None."""
        began = time.perf_counter()
        before = sum(self.spent)
        made = 0
        while made != count:
            try:
                first = next(self._turns)
            except StopIteration as stop:
                self.answer = stop.value
                break
            made += 1
            if first and self.first_block is None:
                self.first_block = before + time.perf_counter() - began
        took = time.perf_counter() - began
        if made or not self.spent:
            self.spent.append(took)
        else:  # nothing was left but the end
            self.spent[-1] += took

    @property
    def result(self) -> Generation:
        """The finished generation."""
        if self.answer is None:
            raise RuntimeError("the run has not finished")
        total = sum(self.spent)
        first = total if self.first_block is None else self.first_block
        return Generation(self.answer, total, first, tuple(self.spent))


def race(
    contestants: Sequence[Contestant], request: Request, count: int | None = None
) -> list[Generation]:
    """Let every contestant answer ``request`` in turns, so that noise meets all of them alike.

    Args:
        contestants: who takes part.
        request: what to answer.
        count: denoising forwards a turn; None lets each finish before the next begins.
    """
    runs = [Run(contestant, request) for contestant in contestants]
    while any(run.answer is None for run in runs):
        for run in runs:
            if run.answer is None:
                settle()
                run.advance(count)
    return [run.result for run in runs]
