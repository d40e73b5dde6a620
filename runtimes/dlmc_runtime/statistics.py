"""What a scheduler has done, in numbers that only grow, and how full it is now."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlmc_runtime.events import Result


@dataclass(frozen=True)
class Statistics:
    """A scheduler at one moment.

    Attributes:
        waiting: requests in the queue.
        active: rows that share forwards.
        slots: rows that could, in the batches that are open.
        forwards: engine runs by what they were for: the kinds of `Task`, joined by ``+`` in
            alphabetical order where rows of several kinds shared one.
        rows_fed: rows that took part in forwards, all together.
        slots_fed: rows that these forwards had room for; ``rows_fed`` over it is the occupancy.
        row_forwards: the same as `Result.forwards` of all that finished, added up.
        tokens: generated tokens of what finished.
        prompt_tokens: prompt tokens of what finished.
        cached_tokens: prompt tokens among them whose cache came from earlier requests.
        prefix_bytes: memory that committed blocks take which are kept for later requests.
        finished: requests by finish reason.
        failed: requests that came to an error, by its class.
        cancelled: requests whose client left.
        forward_seconds: time inside the engine.
        busy_seconds: time in which there was something to do; the rest is the scheduler's own.
    """

    waiting: int = 0
    active: int = 0
    slots: int = 0
    forwards: Mapping[str, int] = field(default_factory=dict)
    rows_fed: int = 0
    slots_fed: int = 0
    row_forwards: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_bytes: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    cancelled: int = 0
    forward_seconds: float = 0.0
    busy_seconds: float = 0.0


@dataclass
class Counts:
    """The numbers that only grow, as the scheduler's thread keeps them; see `Statistics`."""

    forwards: Counter[str] = field(default_factory=Counter)
    rows_fed: int = 0
    slots_fed: int = 0
    row_forwards: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    forward_seconds: float = 0.0
    busy_seconds: float = 0.0

    def finish(self, result: Result) -> None:
        """Add what a finished request has cost and given."""
        self.finished[result.finish_reason] += 1
        self.row_forwards += result.forwards
        self.tokens += len(result.tokens)
        self.prompt_tokens += result.prompt_tokens
        self.cached_tokens += result.cached_tokens

    def snapshot(self, *, waiting: int, active: int, slots: int, prefix_bytes: int) -> Statistics:
        """Return the numbers of now."""
        now: dict[str, Any] = {
            "waiting": waiting,
            "active": active,
            "slots": slots,
            "prefix_bytes": prefix_bytes,
        }
        counted: dict[str, Any] = {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }
        return Statistics(**now, **counted)
