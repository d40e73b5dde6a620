"""HTTP/1.1 as uvicorn speaks it, towards clients that mean no good as well."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Protocol(H11Protocol):
    """One connection, whose client may take ``timeout_keep_alive`` seconds to send a request.

    The time runs from the connection, or the end of the answer before, until the headers are there;
    uvicorn's own stops at the first byte, and begins with the first answer only. What a client
    still sends of a body that was refused does not stop it either.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Read what has arrived, and stop to wait where a request has begun."""
        super().handle_events()
        if not getattr(self.cycle, "response_complete", True):  # None before the first request
            self._stop()

    def on_response_complete(self) -> None:
        """Wait for the next request, which may be there already."""
        self._wait()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, unless the request was answered before all of it was there."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _should_upgrade(self) -> bool:
        """Answer who asks for another protocol in this one; uvicorn's log has two lines of each."""
        return False

    def _wait(self) -> None:
        self._stop()
        self._waiting = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
