"""Who may come in, how many at once, and how much they may bring."""

import asyncio
import hashlib
import hmac
import math
import time
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dlmc_runtime.errors import UsageError
from dlmc_runtime.serve import errors
from dlmc_runtime.serve.models import Site

GUARDED = "/v1/"  # what is under it takes a key, counts as a request, and ends with the server
MAX_KEYS, MAX_KEY_FILE = 10_000, 1 << 20
SHORTEST_KEY = 8
_BUSY_SECONDS = 1
_DRAINING_SECONDS = 5
_MAX_LENGTH_DIGITS = 18


def read_keys(file: Path | None, variable: str | None) -> tuple[str, ...]:
    """Return the API keys of a file, one a line, and of a variable, separated by commas.

    Empty lines and those that begin with ``#`` count for nothing.

    Raises:
        UsageError: the file cannot be read, or a key is too short or no ASCII; keys are not shown.
    """
    found: list[str] = []
    if file is not None:
        found += [line for line in _read(file).splitlines() if not line.startswith("#")]
    found += (variable or "").split(",")
    keys = tuple(dict.fromkeys(key.strip() for key in found if key.strip()))
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
            raise UsageError(
                f"API key number {number} is too short or not of printable ASCII",
                f"use {SHORTEST_KEY} characters or more, without spaces",
            )
    if file is not None and not keys:
        raise UsageError(f"{file} holds no API key", "write one a line")
    if len(keys) > MAX_KEYS:
        raise UsageError(f"there are {len(keys)} API keys", f"give {MAX_KEYS} at most")
    return keys


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_KEY_FILE + 1)
        if len(data) > MAX_KEY_FILE:
            raise UsageError(f"{file} is larger than {MAX_KEY_FILE} bytes", "give a file of keys")
        return data.decode()
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror})", "name a file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8", "write one key a line") from None


class Keys:
    """Digests of API keys. A comparison takes as long whatever a key has in common with ours."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, given: bytes) -> int | None:
        """Return which key this is; None for none. All of them are compared, always."""
        digest, found = _digest(given), None
        for index, known in enumerate(self._digests):
            if hmac.compare_digest(known, digest):
                found = index
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def client(http: Request) -> str:
    """Return who sent a request, as far as taking turns goes: an API key or an address."""
    return str(getattr(http.state, "client", ""))


def seconds_left(http: Request) -> float:
    """Return how long a request may take still, from its arrival on; none is left below 0."""
    whole = Site.of(http).settings.request_seconds
    arrived: float = getattr(http.state, "arrived", math.inf)
    return whole - max(time.monotonic() - arrived, 0.0)


class Gate:
    """Middleware that refuses before anything is parsed.

    It is plain ASGI, so that endpoints see a client go away.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self.app, self.site = app, site
        self.keys = Keys(site.settings.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refuse_host(headers)
        guarded = scope["path"].startswith(GUARDED)
        if guarded and refused is None:
            refused = self._refuse(scope, headers)
        if refused is not None:
            await refused(scope, receive, send)
            return
        limited = _Limited(receive, self.site)
        if not guarded:
            await self.app(scope, limited, send)
            return
        self.site.active += 1
        try:
            await self.app(scope, limited, send)
        finally:
            self.site.active -= 1

    def _refuse_host(self, headers: Headers) -> Response | None:
        allowed = self.site.settings.allowed_hosts
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not allowed or name.lower() in allowed:
            return None
        said = errors.body(403, "this server is not known by that name: see --allowed-host")
        return errors.respond(403, said, {})

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """Return why a request is refused; None, and note its client, where it is not."""
        site, settings = self.site, self.site.settings
        who = "host " + (scope["client"][0] if scope.get("client") else "")
        if self.keys:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            found = self.keys.find(key.strip().encode("latin-1", "replace"))
            if scheme.lower() != "bearer" or found is None:
                said = errors.body(
                    401,
                    "the API key is missing or wrong: send Authorization: Bearer KEY",
                    code="invalid_api_key",
                )
                return errors.respond(401, said, {"WWW-Authenticate": "Bearer"})
            who = f"key {found}"
        scope.setdefault("state", {}).update(client=who, arrived=time.monotonic())
        if site.draining:
            said = errors.body(503, "the server is shutting down", code="draining")
            return errors.respond(503, said, {"Retry-After": str(_DRAINING_SECONDS)})
        length = headers.get("content-length", "0")
        long = len(length) > _MAX_LENGTH_DIGITS or not length.isdecimal()
        if long or int(length) > settings.max_body_bytes:
            return errors.respond(413, errors.body(413, _too_large(settings.max_body_bytes)), {})
        if site.active >= settings.max_concurrent:
            said = errors.body(
                429,
                f"{site.active} requests are in work already: try again later",
                code="overloaded",
            )
            return errors.respond(429, said, {"Retry-After": str(_BUSY_SECONDS)})
        return None


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit} bytes"


class _Limited:
    """Receives a body of bounded size in bounded time."""

    def __init__(self, receive: Receive, site: Site) -> None:
        self._receive, self._settings = receive, site.settings
        self._left: int = site.settings.max_body_bytes
        self._whole = False
        self._deadline: float | None = None

    async def __call__(self) -> Message:
        """Return the next message.

        Raises:
            HTTPException: the body is too large or too slow.
        """
        if self._whole:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        self._deadline = self._deadline or clock() + self._settings.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body takes too long to arrive") from None
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise HTTPException(413, _too_large(self._settings.max_body_bytes))
        self._whole = not message.get("more_body", False)
        return message
