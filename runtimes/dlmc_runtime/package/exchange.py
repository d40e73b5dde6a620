"""A request to a web application of this process, without a socket."""

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

from starlette.types import ASGIApp


class Receiver(Protocol):
    """Takes a response as it comes."""

    def begin(self, status: int, media_type: str) -> None:
        """Take the status, and the content type without its parameters."""

    def take(self, data: bytes) -> None:
        """Take the next bytes of the body."""


class Exchange:
    """One POST of a JSON body.

    Args:
        app: the application.
        path: of the endpoint.
        body: the JSON text.
        receiver: takes the response, on the event loop.
    """

    def __init__(self, app: ASGIApp, path: str, body: bytes, receiver: Receiver) -> None:
        self._app, self._path, self._body, self._receiver = app, path, body, receiver
        self._gone = asyncio.Event()
        self._asked = False

    def hang_up(self) -> None:
        """Tell the application that nobody reads the response any more."""
        self._gone.set()

    async def run(self) -> None:
        """Return when the application has said everything; what it raises is raised here."""
        await self._app(self._scope(), self._receive, self._send)

    def _scope(self) -> dict[str, Any]:
        size = str(len(self._body)).encode()
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", size),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
            "state": {},
        }

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = {key.lower(): value for key, value in message.get("headers", ())}
            media_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0]
            self._receiver.begin(message["status"], media_type.strip())
        elif message["type"] == "http.response.body" and message.get("body"):
            self._receiver.take(message["body"])


class EventReader:
    """Takes server-sent events apart, however their bytes are cut."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """Return the data of every event that is now complete; comments have none."""
        *whole, self._rest = (self._rest + data).split(b"\n\n")
        for event in whole:
            lines = [one for one in event.decode().splitlines() if one.startswith("data:")]
            if lines:
                yield "\n".join(line[5:].lstrip() for line in lines)
