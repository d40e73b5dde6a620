"""Server-sent events: ``data: {…}``, an empty line, and ``data: [DONE]`` at the end."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import groupby
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dlmc_runtime.errors import DlmcError
from dlmc_runtime.serve import errors, jobs
from dlmc_runtime.serve.jobs import Run, Update
from dlmc_runtime.serve.models import Served

_LOG = logging.getLogger(__name__)

DESCRIPTION: dict[str, Any] = {
    "description": "The answer; events `data: {…}` of the same kind of object where `stream`.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}
"""What an endpoint's description says about its success."""
DONE = b"data: [DONE]\n\n"
ALIVE = b": keep-alive\n\n"
"""A comment, which clients pass over and proxies take for a sign of life."""
_HOLE = "…"  # a mask, in a canvas shown as text


def encode(data: Mapping[str, Any]) -> bytes:
    """Return one event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data: {text}\n\n".encode()


class Cancellable(Protocol):
    """What a stream is of; `Run` is one."""

    def cancel(self) -> None:
        """End it: nobody waits for it any more."""
        ...


class EventStream(Response):
    """A response that sends events as they come, and ends the run when the client goes away.

    An error in the middle becomes the last event. A reader that takes nothing for too long is
    dropped. Where there is nothing to send for a while, as in a queue, comments go out.

    Args:
        run: what makes the events; cancelled when the response ends, however it does.
        events: JSON objects.
        stall_seconds: how long a reader may take nothing.
        quiet_seconds: how long nothing is sent at most.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        run: Cancellable,
        events: AsyncGenerator[Mapping[str, Any], None],
        stall_seconds: float = 60.0,
        quiet_seconds: float = 15.0,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.run, self.events = run, events
        self.stall_seconds, self.quiet_seconds = stall_seconds, quiet_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, unless the client leaves earlier."""
        work = asyncio.ensure_future(self._send(scope, send))
        gone = asyncio.ensure_future(jobs.disconnected(HttpRequest(scope, receive)))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self.run.cancel()
            await jobs.stop(work, gone)

    async def _send(self, scope: Scope, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        # A reader that stalls ends it: an unfinished response closes its connection.
        with suppress(TimeoutError):
            await self._send_events(scope, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, scope: Scope, send: Send) -> None:
        async with aclosing(lively(self.events, self.quiet_seconds)) as pieces:
            try:
                async for piece in pieces:
                    await self._write(send, piece)
                await self._write(send, DONE)
            except DlmcError as error:
                _, said, _ = errors.describe(error, draining=errors.is_draining(scope))
                await self._write(send, encode(said))
            except TimeoutError:
                raise
            except Exception:  # noqa: BLE001  (the status is sent: what is left is to say so)
                _LOG.exception("a stream broke off")
                await self._write(send, encode(errors.internal()))

    async def _write(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(self.stall_seconds):
            await send({"type": "http.response.body", "body": data, "more_body": True})


async def lively(
    events: AsyncGenerator[Mapping[str, Any], None], seconds: float
) -> AsyncGenerator[bytes, None]:
    """Encode events as they come, with a comment wherever none has come for ``seconds``.

    Each is waited for in a task of its own: events at hand do not keep the loop from others.
    """
    coming: asyncio.Future[Mapping[str, Any] | None] | None = None
    async with aclosing(events):
        try:
            while True:
                if coming is None:
                    coming = asyncio.ensure_future(anext(events, None))
                if not (await asyncio.wait({coming}, timeout=seconds))[0]:
                    yield ALIVE
                    continue
                data, coming = coming.result(), None
                if data is None:
                    return
                yield encode(data)
        finally:
            if coming is not None:
                await jobs.stop(coming)


def canvas(run: Run, update: Update) -> dict[str, Any] | None:
    """Return what the field ``diffusion`` of an event says about a canvas; None without one."""
    event = update.canvas
    if event is None:
        return None
    served, request = run.job.served, run.job.requests[update.index]
    size = len(event.canvas) if request.holes else request.max_new_tokens
    ids, masked = event.canvas[:size].tolist(), event.masked[:size].tolist()
    tokens: list[dict[str, Any]] = []
    for position, (token, open_) in enumerate(zip(ids, masked, strict=True)):
        inside = event.start <= position < event.end
        state = "masked" if open_ else "final" if position < update.count else "committed"
        sure = float(event.confidence[position - event.start]) if inside else None
        text = _HOLE if open_ else served.token(token)
        tokens.append({"id": token, "text": text, "state": state, "confidence": sure})
    return {
        "index": update.index,
        "forward": event.forward,
        "start": event.start,
        "end": min(event.end, size),
        "tokens_per_forward": masked.count(False) / event.forward,
        "text": _text(served, ids, masked),
        "tokens": tokens,
    }


def _text(served: Served, ids: Sequence[int], masked: Sequence[bool]) -> str:
    """Return a canvas as text; what is decided is decoded run by run, so that bytes join."""
    pieces: list[str] = []
    codec = served.generator.text
    for open_, run in groupby(zip(masked, ids, strict=True), key=lambda pair: pair[0]):
        tokens = [token for _, token in run]
        if open_:
            pieces.append(_HOLE * len(tokens))
        elif codec is not None:
            pieces.append(codec.decode(tokens, skip_special_tokens=False))
    return "".join(pieces)
