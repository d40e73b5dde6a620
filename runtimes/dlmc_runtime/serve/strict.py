"""Bodies, read strictly: one JSON object in UTF-8, nothing in it twice, nothing unbounded."""

import json
import math
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

MAX_DEPTH = 64
MAX_DIGITS = 40  # of a number: more than any float64 or int64 needs
# Values are checked one by one on the event loop: this many, keys included, take it a moment.
MAX_VALUES = 1 << 18
MAX_KEYS = 1 << 13  # of one object
_AT_ONCE = 1 << 16  # bytes; a longer body is read on a thread
_SURROGATE = re.compile("[\ud800-\udfff]")


class _NotAcceptableError(ValueError):
    """Why; completes "the body ..."."""


def parse(data: bytes) -> dict[str, Any]:
    """Read the JSON object of a body.

    Raises:
        ValueError: it is something else; the message completes "the body ...".
    """
    if not data.strip():
        raise _NotAcceptableError("is empty: send a JSON object")
    try:
        found = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_integer,
            parse_float=_number,
        )
    except UnicodeDecodeError as error:
        raise _NotAcceptableError(f"is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _NotAcceptableError("is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _NotAcceptableError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise _NotAcceptableError("is not a JSON object")
    _check(found)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise _NotAcceptableError(f"has more than {MAX_KEYS} keys in an object")
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _NotAcceptableError(f"has {name[:80]!a} twice in an object")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise _NotAcceptableError(f"holds {name}, which is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _NotAcceptableError(f"holds a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _NotAcceptableError("holds a number that is too large")
    return value


def _check(found: Any) -> None:
    """Refuse too much, deep nesting, and halves of surrogate pairs, which no encoder writes."""
    level, count = [found], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > MAX_VALUES:
            raise _NotAcceptableError(f"holds more than {MAX_VALUES} values")
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                if _SURROGATE.search(value):
                    raise _NotAcceptableError("holds half a surrogate pair")
            elif isinstance(value, dict):
                below += value
                below += value.values()
            elif isinstance(value, list):
                below += value
        if not below:
            return
        level = below
    raise _NotAcceptableError(f"is nested more than {MAX_DEPTH} deep")


class StrictRequest(Request):
    """A request whose JSON is read by `parse`."""

    async def json(self) -> Any:
        """Return the body's object."""
        data = await self.body()
        try:
            return parse(data) if len(data) < _AT_ONCE else await run_in_threadpool(parse, data)
        except ValueError as error:
            raise HTTPException(400, f"the body {error}") from None


class StrictRoute(APIRoute):
    """A route whose body is a JSON object, and nothing that can be mistaken for one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handler = super().get_route_handler()

        async def strict(given: Request) -> Response:
            request = StrictRequest(given.scope, given.receive)
            if self.body_field is not None:
                kind = request.headers.get("content-type", "")
                if kind.partition(";")[0].strip().lower() != "application/json":
                    raise HTTPException(400, "the body's Content-Type must be application/json")
                if not await request.body():  # which would read as a body that is left out
                    raise HTTPException(400, "the body is empty: send a JSON object")
            return await handler(request)

        return strict
