"""The process around the application: a socket, and an orderly end."""

import asyncio
import contextlib
import errno
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from dlmc_runtime.errors import DlmcError, UsageError
from dlmc_runtime.serve.models import CLOSING_SECONDS, Site
from dlmc_runtime.serve.protocol import Protocol

_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 30
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound, not listening yet; port 0 takes a free one.

    Raises:
        DlmcError: the port is in use, or not ours to take.
        UsageError: the host is no address of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):  # the second of what no name can be
        raise UsageError(f"--host {host} is no address", "give 127.0.0.1 or 0.0.0.0") from None
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRNOTAVAIL:
            problem = f"--host {host} is no address of this machine"
            raise UsageError(problem, "give 127.0.0.1 or 0.0.0.0") from None
        hints = {errno.EADDRINUSE: "is in use", errno.EACCES: "is reserved"}
        why = hints.get(error.errno or 0, f"cannot be taken ({error.strerror})")
        raise DlmcError(f"port {port} of {host} {why}", "give another --port") from None
    return opened


class Server(uvicorn.Server):
    """A server that ends when what it has begun is done.

    The first SIGTERM or SIGINT lets no further request in: they are answered with 503, and so is
    ``/health``, while those that run may finish for ``drain_seconds``; then they fail. A second one
    ends the process at once.
    """

    def __init__(self, config: uvicorn.Config, site: Site, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.site, self._ready = site, ready
        self._deadline = 0.0
        self._closing: asyncio.Future[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals drain the server while it runs; only a main thread is told them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain, or end at once."""
        if self.site.draining or not self.started:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._deadline = time.monotonic() + self.site.settings.drain_seconds
        self.site.draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell who waits for it."""
        for opened in sockets or ():
            self._bound_stalls(opened)
        await super().startup(sockets)
        self._ready()

    def _bound_stalls(self, opened: socket.socket) -> None:
        """Let the system end connections whose client takes nothing of an answer.

        An answer that is not a stream is out of the application's hands at once: what the client
        does not take would stay in memory as long as it keeps the connection.
        """
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections have it from their listener
            milliseconds = round(1000 * self.site.settings.stall_seconds)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; called ten times a second."""
        if self.site.draining:
            late = time.monotonic() - self._deadline
            if late > 0 and self._closing is None:  # what is left is told so
                self._closing = asyncio.ensure_future(self.site.close())
            idle = not self.site.active and all(one.wait(0) for one in self.site.schedulers)
            if idle or late > CLOSING_SECONDS:
                self.should_exit = True
        return await super().on_tick(counter)


def prepare(app: FastAPI, ready: Callable[[], None], *, log: bool = False) -> Server:
    """Return a server for an application; ``run(sockets=[…])`` serves until a signal ends it.

    Args:
        app: made by `create_app`.
        ready: called once requests are taken.
        log: write a line for each request, without its headers.
    """
    config = uvicorn.Config(
        app,
        http=Protocol,  # h11, whichever parser is there: it bounds the size of headers
        ws="none",
        log_config=None,
        access_log=log,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(CLOSING_SECONDS),
    )
    return Server(config, app.state.site, ready)
