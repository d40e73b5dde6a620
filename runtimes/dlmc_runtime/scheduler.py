"""Continuous batching: requests of many clients share the forwards of one engine."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Self

import numpy as np

from dlmc_runtime import preflight
from dlmc_runtime.admission import Admission
from dlmc_runtime.batch import Batch, check_slots
from dlmc_runtime.cache import cache_shapes
from dlmc_runtime.errors import DeadlineError, DlmcError, EngineError, OverloadError
from dlmc_runtime.events import Failed
from dlmc_runtime.generate import Generator
from dlmc_runtime.pool import Pool
from dlmc_runtime.prefixes import PrefixStore
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.row import Request, Row
from dlmc_runtime.statistics import Counts, Statistics
from dlmc_runtime.ticket import Listener, Ticket

_log = logging.getLogger(__name__)

# An engine that failed so often in a row is taken for broken.
_BROKEN_AFTER = 3
_VALUE_BYTES = 4  # of a cache entry, at most


@dataclass(frozen=True)
class Limits:
    """How much a scheduler takes on.

    Attributes:
        queue: requests that may wait.
        rows: rows that share forwards; None for as many as the widest profile.
        cache_bytes: memory for the caches of rows; None for half of what is free at the start.
        prefix_bytes: memory for committed blocks that later requests may use again; 0 for none.
    """

    queue: int = 256
    rows: int | None = None
    cache_bytes: int | None = None
    prefix_bytes: int = 256 << 20


class Scheduler:
    """Serves requests to one engine, forward by forward, on a thread of its own.

    Rows join and leave between forwards. Where an engine has caches of several sizes, there is a
    batch for each, opened when it is needed and closed when another needs its memory.

    Args:
        generator: the engine; it stays the caller's, who closes it after the scheduler.
        limits: how much to take on.
    """

    def __init__(self, generator: Generator, limits: Limits | None = None) -> None:
        self.generator, self.limits = generator, limits or Limits()
        self._table = ProfileTable(generator.profiles)
        self._changed = threading.Condition()
        self._queue: Admission[Ticket] = Admission(self.limits.queue)
        self._pools: dict[tuple[int, int], Pool] = {}
        self._prefixes = PrefixStore(self.limits.prefix_bytes)
        self._counts = Counts()
        self._failures = 0
        self._draining = self._closing = False
        self._thread: threading.Thread | None = None
        self._joining: Ticket | None = None  # neither in the queue nor in a batch
        self._began: float | None = None  # the round of forwards that is under way
        self._cache_bytes = self.limits.cache_bytes
        if self._cache_bytes is None:
            free = preflight.ThisMachine().free_memory(gpu=False)
            self._cache_bytes = None if free is None else free // 2

    @property
    def longest_cache(self) -> int:
        """Bytes of the cache that the longest request takes, in its narrowest batch."""
        positions = max(profile.cache for profile in self.generator.profiles)
        batches = [one.batch for one in self.generator.profiles if one.cache == positions]
        return self._bytes(min(batches), positions)

    def start(self) -> None:
        """Begin to serve; calling it again, or after `close`, does nothing."""
        with self._changed:
            if self._thread is not None or self._closing:
                return
            thread = threading.Thread(target=self._run, name="dlmc-scheduler", daemon=True)
            thread.start()
            self._thread = thread  # only one that runs can be waited for

    def submit(
        self,
        request: Request,
        listener: Listener,
        *,
        client: str = "",
        seconds: float | None = None,
    ) -> Ticket:
        """Let a request wait for its turn.

        Args:
            request: made by this generator.
            listener: told every event, with ``row`` 0, on the scheduler's thread: it must return
                at once and raise nothing. One `Finished` or `Failed` comes last, unless the
                ticket is cancelled.
            client: whose request it is; clients take turns.
            seconds: it fails with `DeadlineError` where it is not done by then.

        Raises:
            RequestError: it fits no profile.
            OverloadError: too many wait, or no more are accepted.
        """
        row = Row(request, self.generator.manifest)
        home = self._home(row)
        check_slots(row, home[0])
        ticket = Ticket(row, home, listener, self._wake, seconds)
        with self._changed:
            if self._draining or self._closing:
                raise OverloadError("the server is shutting down", "ask another one", 5.0)
            self._queue.add(client, ticket, self._patience())
            self._changed.notify_all()
        return ticket

    def drain(self) -> None:
        """Accept no more requests; those that wait or run are still served."""
        with self._changed:
            self._draining = True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing waits or runs; return whether that came true in ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, seconds)

    def close(self, seconds: float | None = None) -> bool:
        """Fail what waits or runs, and end the thread; calling it again does nothing.

        Args:
            seconds: how long the forward that is under way may keep everybody waiting; None for
                as long as it takes.

        Returns:
            Whether the thread has ended. If not, the engine is in a forward, and in use.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            self._end()
            return True
        thread.join(seconds)
        if not thread.is_alive():
            return True
        with self._changed:
            left = self._queue.remove(_everybody)
            joining = self._joining
        for pool in [*self._pools.values()]:  # whose rows leave once the forward has come back
            left += [seat.ticket for seat in [*pool.seats.values()]]
        self._shut_out(left if joining is None else [*left, joining])
        return False

    @property
    def alive(self) -> bool:
        """Whether it serves: its thread runs, and the engine does not fail again and again."""
        runs = self._thread is not None and self._thread.is_alive()
        return runs and not self._closing and self._failures < _BROKEN_AFTER

    @property
    def round_seconds(self) -> float:
        """How long the round of forwards that is under way has lasted; 0 between rounds."""
        began = self._began
        return 0.0 if began is None else time.perf_counter() - began

    @property
    def draining(self) -> bool:
        """Whether it accepts no more requests."""
        return self._draining or self._closing

    def statistics(self) -> Statistics:
        """Return what it has done so far."""
        with self._changed:
            pools = [*self._pools.values()]
            return self._counts.snapshot(
                waiting=len(self._queue),
                active=sum(len(pool.seats) for pool in pools),
                slots=sum(pool.batch.size for pool in pools),
                prefix_bytes=self._prefixes.nbytes,
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def _busy(self) -> bool:
        """Whether something waits, runs, or is just on its way."""
        return self._began is not None or self._has_work

    @property
    def _has_work(self) -> bool:
        return len(self._queue) > 0 or any(pool.seats for pool in self._pools.values())

    def _patience(self) -> float:
        """Return after how many seconds a request that found no room may come again."""
        counts = self._counts
        done = sum(counts.finished.values())
        each = counts.busy_seconds / done if done else 1.0
        return float(np.clip(each * len(self._queue) / 2, 1.0, 60.0))

    def _home(self, row: Row) -> tuple[int, int]:
        """Return the (batch, cache) that a row belongs to; raises `RequestError`."""
        needs = row.regime
        return self._table.pool(
            needs.cache_needed, needs.block_needed, needs.head_needed, self.limits.rows
        )

    def _run(self) -> None:
        """Serve until closed; the scheduler's thread."""
        try:
            self._serve()
        finally:
            self._closing = True
            self._end()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._counts.busy_seconds += self.round_seconds
                self._began = None
                if not self._has_work:
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._has_work or self._closing)
                self._began = time.perf_counter()
                if self._closing:
                    return
            self._let_go()
            self._admit()
            self._advance()

    def _let_go(self) -> None:
        """Take out whoever has left or has no time left."""
        now = time.monotonic()

        def late(ticket: Ticket) -> bool:
            return ticket.deadline is not None and now >= ticket.deadline

        def gone(ticket: Ticket) -> bool:
            return ticket.cancelled or late(ticket)

        with self._changed:
            left = self._queue.remove(gone)
        for pool in self._pools.values():
            left += pool.drop(gone)
        for ticket in left:
            if late(ticket):
                problem = "the request was not done within its time"
                self._fail(ticket, DeadlineError(problem, "ask for less, or try again later"))
            else:
                self._counts.cancelled += 1
                ticket.close()

    def _admit(self) -> None:
        """Let requests join, in order.

        Who finds no room holds up those for the same batch. Who finds no memory holds up all: the
        other batches must become empty, so that one of them can be closed.
        """
        full: set[tuple[int, int]] = set()
        starved = False

        def fits(ticket: Ticket) -> bool:
            nonlocal starved
            if starved or ticket.home in full:
                return False
            pool = self._pools.get(ticket.home)
            if pool is not None and pool.seats:
                room = pool.batch.has_room(ticket.row)
                full.update(() if room else (ticket.home,))
                return room
            starved = not self._make_room(ticket.home, ticket.row.slots)
            return not starved

        while True:
            with self._changed:
                ticket = self._joining = self._queue.next(fits)
            if ticket is None:
                return
            try:
                self._pool(ticket.home, ticket.row.slots).join(ticket)
            except DlmcError as error:
                self._fail(ticket, error)
            except Exception as error:  # noqa: BLE001  (it ends no other row)
                _log.exception("a request could not be admitted")
                problem = f"the engine cannot take the request ({type(error).__name__})"
                self._fail(ticket, EngineError(problem, "try it again"))

    def _pool(self, home: tuple[int, int], slots: int) -> Pool:
        """Return the batch that rows belong to, opened where it is not; raises `EngineError`."""
        if home not in self._pools:
            batch = self._opened(home, slots)
            pool = Pool(batch, self.generator.text, self._prefixes, self._counts)
            with self._changed:
                self._pools[home] = pool
        return self._pools[home]

    def _opened(self, home: tuple[int, int], slots: int) -> Batch:
        """Return an empty batch, as wide as memory allows; raises `EngineError`."""
        size, context = home
        widths = [width for width in self._table.widths(size, context) if width >= slots]
        affordable = [width for width in widths if self._bytes(width, context) <= self._left()]
        failure = EngineError(
            f"the memory for caches does not hold a batch of {widths[0]} with {context} positions",
            "give it more, or build with a smaller --cache",
        )
        for width in reversed(affordable):
            try:
                return Batch(self.generator.engine, width, context)
            except EngineError as error:  # the device has less than was thought
                failure = error
        raise failure

    def _bytes(self, size: int, context: int) -> int:
        shapes = cache_shapes(self.generator.manifest.model, size, context)
        return _VALUE_BYTES * sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values())

    def _left(self) -> float:
        """Return the bytes that are left for caches."""
        if self._cache_bytes is None:
            return np.inf
        batches = [pool.batch for pool in self._pools.values()]
        return self._cache_bytes - sum(self._bytes(one.size, one.context) for one in batches)

    def _make_room(self, home: tuple[int, int], slots: int) -> bool:
        """Return whether there is a batch to join, or one can be opened.

        Batches that nobody uses are closed where that lets this one be wider. Where nothing is left
        to close it is opened whatever it takes, and fails then.
        """
        size, context = home
        fitting = [width for width in self._table.widths(size, context) if width >= slots]
        idle = {key: pool.batch for key, pool in self._pools.items() if not pool.seats}
        free = self._left() + sum(self._bytes(one.size, one.context) for one in idle.values())
        most = max((w for w in fitting if self._bytes(w, context) <= free), default=0)
        if home in idle and idle[home].size >= max(most, slots):
            return True
        if not most and len(idle) < len(self._pools):
            return False
        self._pools.pop(home, None)
        for key in idle.keys() - {home}:
            if self._left() < self._bytes(most, context):
                del self._pools[key]
        return True

    def _advance(self) -> None:
        """Run a forward of every batch that is used; hold none of them after it.

        The memory of one that is closed later must be free before another is opened.
        """
        for pool in [*self._pools.values()]:
            if pool.seats:
                self._failures = 0 if pool.turn() else self._failures + 1

    def _fail(self, ticket: Ticket, error: DlmcError) -> None:
        if not ticket.done:
            self._counts.failed[type(error).__name__] += 1
            ticket.tell(Failed(0, error))

    def _shut_out(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self._fail(ticket, OverloadError("the server was shut down", "ask another one", 5.0))

    def _end(self) -> None:
        """Fail everybody that is left."""
        with self._changed:
            left = self._queue.remove(_everybody)
        for pool in self._pools.values():
            left += pool.drop(_everybody)
        self._shut_out(left)
        with self._changed:
            self._pools.clear()
            self._began = None
            self._changed.notify_all()


def _everybody(ticket: Ticket) -> bool:
    del ticket
    return True
