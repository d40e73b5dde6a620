"""Between the scheduler's threads and the event loop: requests submitted, watched and cancelled.

A listener must return at once, and a client may read slowly. So what happens to a row waits in a
mailbox where it does not pile up: texts are joined, and of canvases only the latest is kept.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from anyio import CancelScope, current_time, to_thread
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from dlmc_runtime.errors import DeadlineError, DlmcError
from dlmc_runtime.events import Committed, Denoised, Event, Failed, Finished, Result
from dlmc_runtime.row import Request
from dlmc_runtime.serve.errors import blame
from dlmc_runtime.serve.models import Served, Site
from dlmc_runtime.serve.security import client, seconds_left
from dlmc_runtime.ticket import Ticket

# Beyond the time of a request, for the scheduler to say that it is up.
_GRACE_SECONDS = 1.0

Asked = TypeVar("Asked")
Planned = TypeVar("Planned")


@dataclass(frozen=True)
class Job:
    """What an endpoint wants done: rows of one model, all for one client.

    Attributes:
        served: the model.
        requests: one a row; `Update.index` counts them.
        client: who asks; clients take turns.
        seconds: until the deadline.
        canvases: whether intermediate canvases are wanted.
    """

    served: Served
    requests: Sequence[Request]
    client: str = ""
    seconds: float | None = None
    canvases: bool = False


@dataclass(frozen=True)
class Update:
    """What happened to a row since the update before it.

    Attributes:
        index: which row.
        text: what was added to its text.
        tokens: what was added to its final tokens.
        count: final tokens so far.
        canvas: its latest canvas, where canvases are wanted and it has changed.
        result: set in the row's last update.
    """

    index: int
    text: str = ""
    tokens: tuple[int, ...] = ()
    count: int = 0
    canvas: Denoised | None = None
    result: Result | None = None

    def after(self, event: Event, *, canvases: bool) -> "Update":
        """Return this update with an event added to it."""
        match event:
            case Committed():
                return replace(
                    self,
                    text=self.text + event.text,
                    tokens=self.tokens + event.tokens,
                    count=self.count + len(event.tokens),
                )
            case Denoised():
                return replace(self, canvas=event) if canvases else self
            case Finished():
                return replace(self, result=event.result)
            case _:
                return self


class Mailbox:
    """What a job's rows have to say, filled on any thread and emptied on the event loop."""

    def __init__(self, rows: int, *, canvases: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._lock = threading.Lock()
        self._pending: dict[int, Update] = {}
        self._counts = [0] * rows
        self._error: DlmcError | None = None
        self._canvases = canvases

    def listener(self, index: int) -> Callable[[Event], None]:
        """Return what the scheduler calls with events of row ``index``."""
        return lambda event: self._put(index, event)

    def _put(self, index: int, event: Event) -> None:
        with self._lock:
            if isinstance(event, Failed):
                self._error = self._error or event.error
            else:
                pending = self._pending.get(index) or Update(index, count=self._counts[index])
                added = pending.after(event, canvases=self._canvases)
                if added is pending:
                    return
                self._counts[index], self._pending[index] = added.count, added
        with suppress(RuntimeError):  # the loop was closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._filled.set)

    async def take(self) -> list[Update]:
        """Wait until there is something, and return all of it, one update a row.

        Raises:
            DlmcError: a row has failed.
        """
        await self._filled.wait()
        self._filled.clear()
        with self._lock:
            taken, self._pending = self._pending, {}
            if self._error is not None:
                raise self._error
        return list(taken.values())


class Run:
    """A submitted job. `cancel` it when nobody waits for it any more; that may be done twice.

    Raises:
        OverloadError: the server has no room for all rows; none was left in the queue.
        FieldError: a row fits no profile of the engine.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._mailbox = Mailbox(len(job.requests), canvases=job.canvases)
        self._latest: float | None = None
        if job.seconds is not None:
            self._latest = asyncio.get_running_loop().time() + job.seconds + _GRACE_SECONDS
        self.tickets: list[Ticket] = []
        try:
            for index, request in enumerate(job.requests):
                listener = self._mailbox.listener(index)
                with blame("max_tokens"):
                    ticket = job.served.scheduler.submit(
                        request, listener, client=job.client, seconds=job.seconds
                    )
                self.tickets.append(ticket)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Let every row leave that has not ended."""
        for ticket in self.tickets:
            if not ticket.done:
                ticket.cancel()

    async def updates(self) -> AsyncIterator[Update]:
        """Report what happens until every row has its result.

        Raises:
            DlmcError: a row has failed; the others are cancelled.
        """
        left = len(self.tickets)
        try:
            while left:
                for update in await self._take():
                    if update.result is not None:
                        left -= 1
                        self.job.served.observe(self.tickets[update.index])
                    yield update
        finally:
            self.cancel()

    async def _take(self) -> list[Update]:
        """Return what is new. In a forward that hangs, the scheduler tells nobody of the time."""
        try:
            async with asyncio.timeout_at(self._latest):
                return await self._mailbox.take()
        except TimeoutError:
            raise _late() from None

    async def results(self, http: HttpRequest) -> list[Result]:
        """Wait for the results, in the order of the job's requests.

        Raises:
            ClientDisconnect: the client went away; its rows were cancelled.
            DlmcError: a row has failed; the others are cancelled.
        """
        work = asyncio.ensure_future(self._collect())
        gone = asyncio.ensure_future(disconnected(http))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientDisconnect
            return work.result()
        finally:
            self.cancel()
            await stop(work, gone)

    async def _collect(self) -> list[Result]:
        found: dict[int, Result] = {}
        async for update in self.updates():
            if update.result is not None:
                found[update.index] = update.result
        return [found[index] for index in range(len(self.tickets))]


def begun(served: Served, requests: Sequence[Request], http: HttpRequest, *, canvases: bool) -> Run:
    """Submit the rows of a request that came over HTTP, for its client and within its time.

    Raises:
        OverloadError: as `Run`.
        FieldError: as `Run`.
    """
    return Run(Job(served, requests, client(http), seconds_left(http), canvases=canvases))


async def planned(
    plan: Callable[[Served, Asked, Site], Planned], served: Served, body: Asked, http: HttpRequest
) -> Planned:
    """Return what ``plan`` makes of a request's body; it runs on a thread.

    Raises:
        ClientDisconnect: the client went away before its turn.
        DeadlineError: the time for the request was up before its turn.
        DlmcError: as ``plan``.
    """
    site = Site.of(http)
    compiled = any(getattr(body, name, None) for name in ("response_format", "tools"))
    limiter = site.compiling if compiled else None
    with CancelScope(deadline=current_time() + seconds_left(http)) as turn:
        gone = asyncio.ensure_future(disconnected(http))
        gone.add_done_callback(lambda done: None if done.cancelled() else turn.cancel())
        try:  # what has begun on its thread ends there: threads cannot be interrupted
            return await to_thread.run_sync(plan, served, body, site, limiter=limiter)
        finally:
            left = gone.done()
            gone.cancel()
    if left:
        raise ClientDisconnect
    raise _late()


def _late() -> DeadlineError:
    return DeadlineError("the request was not done within its time", "try again later")


async def disconnected(http: HttpRequest) -> None:
    """Wait until a client goes away. Its body must have been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def stop(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they are gone; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
