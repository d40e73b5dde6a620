"""Load on a server: what is asked, when each request is sent, and what became of it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dlmc.bench.tasks import Task, rendered
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.options import Prompt
from dlmc_runtime.text import TextCodec

_LONGEST = 128  # arbitrary tokens, where nothing else is asked for


@dataclass(frozen=True)
class Ask:
    """A prompt, the seed of its answer, and the only answer that counts, if there is one."""

    prompt: Prompt
    seed: int
    answer: str | None = None


@dataclass(frozen=True)
class Call:
    """What became of a request; times are those of `time.monotonic`.

    Attributes:
        sent: when it was.
        admitted: when it first shared a forward; None where nobody tells.
        first_block: when the first of its text was final.
        ended: when it had ended.
        tokens: of the answer.
        forwards: that it took part in.
        cached: prompt tokens that an earlier request had left in the cache.
        made: the answer's ids, or its text where a server tells no ids.
        text: of the answer.
        error: what kind of error it came to; empty for none.
    """

    sent: float
    ended: float
    admitted: float | None = None
    first_block: float | None = None
    tokens: int = 0
    forwards: int = 0
    cached: int = 0
    made: tuple[int, ...] | str = ""
    text: str = ""
    error: str = ""


class Front(Protocol):
    """Whoever takes requests, numbered from 0."""

    def send(self, index: int, done: Callable[[], None]) -> None:
        """Send a request and return at once; ``done`` is called when it has ended."""
        ...

    def calls(self) -> list[Call]:
        """Return what became of all that were sent, in the order of their numbers."""
        ...


class Pace(Protocol):
    """When requests are sent."""

    def wait(self) -> None:
        """Wait until the next one is due."""
        ...

    def ended(self) -> None:
        """Take note that one has ended."""
        ...


class Poisson:
    """Requests of many clients who know nothing of one another: an open loop.

    Args:
        rate: requests a second, on average.
        seed: of the times between them, which are exponential.
    """

    def __init__(self, rate: float, seed: int) -> None:
        self.rate = rate
        self._draws = np.random.default_rng(seed)
        self._due: float | None = None

    def wait(self) -> None:
        """Wait until the next one is due; the first one is at once."""
        now = time.monotonic()
        self._due = now if self._due is None else self._due + self.gap()
        time.sleep(max(self._due - now, 0.0))

    def gap(self) -> float:
        """Draw the seconds between two requests."""
        return float(self._draws.exponential(1 / self.rate))

    def ended(self) -> None:
        """Nobody waits for others here."""


class InFlight:
    """So many clients who each send the next request when the last has ended: a closed loop.

    Args:
        count: requests in flight.
    """

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)

    def wait(self) -> None:
        """Wait until fewer are in flight."""
        self._free.acquire()

    def ended(self) -> None:
        """Let the next one go."""
        self._free.release()


def drive(front: Front, count: int, pace: Pace) -> list[Call]:
    """Send ``count`` requests and wait until all have ended.

    Raises:
        DlmcError: the first that cannot be sent at all, which is no matter of load.
    """
    over = threading.Semaphore(0)

    def done() -> None:
        pace.ended()
        over.release()

    for index in range(count):
        pace.wait()
        front.send(index, done)
    for _ in range(count):
        over.acquire()
    return front.calls()


def asked(tasks: Sequence[Task], codec: TextCodec | None, count: int, seed: int) -> list[Ask]:
    """Return ``count`` requests out of tasks, in turns."""
    chosen = (tasks[index % len(tasks)] for index in range(count))
    return [
        Ask(rendered(codec, task.prompt), seed + index, task.answer)
        for index, task in enumerate(chosen)
    ]


def arbitrary(manifest: Manifest, between: tuple[int, int], count: int, seed: int) -> list[Ask]:
    """Return ``count`` requests of arbitrary ids, all lengths in a range equally likely."""
    draws = np.random.default_rng(seed)
    allowed = np.setdiff1d(np.arange(manifest.model.vocab_size), manifest.tokens.suppressed)
    sizes = draws.integers(*between, count, endpoint=True)
    return [
        Ask(draws.choice(allowed, size).tolist(), seed + index)
        for index, size in enumerate(sizes.tolist())
    ]


def fitting(profiles: Sequence[Profile], block: int, max_new_tokens: int) -> tuple[int, int]:
    """Return a range of prompt lengths that fit profiles, with an answer and a block beside it."""
    longest = max(max(profile.block, profile.cache) for profile in profiles)
    most = min(max(longest - max_new_tokens - block, 1), _LONGEST)
    return max(most // 8, 1), most
