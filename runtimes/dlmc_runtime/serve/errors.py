"""Errors as OpenAI's clients expect them: ``{"error": {message, type, param, code}}``."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from dlmc_runtime.errors import (
    DeadlineError,
    DlmcError,
    EngineError,
    OverloadError,
    RequestError,
    UsageError,
)

_LOG = logging.getLogger(__name__)


class FieldError(UsageError):
    """A field of a request that cannot be served.

    Args:
        param: the field, with dots between the names of nested ones.
        message: what is wrong with it.
        hint: what to do.
        status: of the response.
        code: a word for programs.
    """

    def __init__(
        self,
        param: str | None,
        message: str,
        hint: str = "",
        *,
        status: int = 400,
        code: str | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.param, self.status, self.code = param, status, code


@contextmanager
def blame(param: str) -> Iterator[None]:
    """Name the field that is behind a `UsageError` or `RequestError` raised inside."""
    try:
        yield
    except FieldError:
        raise
    except (UsageError, RequestError) as error:
        raise FieldError(param, error.message, error.hint) from error


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every response that is no success."""

    error: ErrorDetail


# What OpenAI calls kinds of errors, by status; other statuses of 400 and above are the first kind.
_INVALID = "invalid_request_error"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}
_STATUS: tuple[tuple[type[DlmcError], int, str | None], ...] = (
    (OverloadError, 429, "overloaded"),
    (DeadlineError, 504, "deadline_exceeded"),
    (EngineError, 503, "engine_error"),
    (DlmcError, 400, None),
)
_INTERNAL = "the server made a mistake: its log says which"
CLIENT_GONE = 499  # nobody reads it; what nginx calls a request whose client went away

_DESCRIPTIONS = {
    400: "A field or the body is not acceptable; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "No such model or path.",
    408: "The body took too long to arrive.",
    413: "The body is too large.",
    429: "Too many requests; `Retry-After` says when to try again.",
    500: "A defect of the server.",
    503: "The server is shutting down, or its engine failed.",
    504: "The time for the request was up.",
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _DESCRIPTIONS.items()
}
"""What an endpoint's description says about its errors."""


def body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the body of an error."""
    kind = _TYPES.get(status, _INVALID)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(
    error: DlmcError, *, draining: bool = False
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return the status, body and headers that an error of dlmc has.

    Args:
        error: what was raised.
        draining: whether the server is about to end, so that it makes no sense to come again.
    """
    if isinstance(error, FieldError):
        said = body(error.status, str(error), param=error.param, code=error.code)
        return error.status, said, {}
    status, code = next((s, c) for kind, s, c in _STATUS if isinstance(error, kind))
    headers = {}
    if isinstance(error, OverloadError):
        if draining:
            status, code = 503, "draining"
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    elif status == 503:
        headers["Retry-After"] = "1"
    return status, body(status, str(error), code=code), headers


def internal() -> dict[str, Any]:
    """Return the body of an error that is the server's own; it says nothing about its insides."""
    return body(500, _INTERNAL, code="internal_error")


def respond(status: int, said: Mapping[str, Any], headers: Mapping[str, str]) -> JSONResponse:
    """Return an error as a response."""
    return JSONResponse(said, status, headers=dict(headers))


_PLAIN = {
    "missing": "{param} is missing",
    "extra_forbidden": "{param} is not supported here",
    "model_attributes_type": "{param} must be an object",
    "model_type": "{param} must be an object",
    "string_too_short": "{param} is empty",
    "too_short": "{param} is empty",
}
# What to do about fields that clients of other servers may send.
_HINTS = {
    ("missing", "model"): "name one that /v1/models lists",
    ("extra_forbidden", "suffix"): "use /v1/fim/completions",
    ("extra_forbidden", "echo"): "put the prompt before the answer yourself",
    ("extra_forbidden", "best_of"): "ask for n answers",
    ("extra_forbidden", "max_completion_tokens"): "use max_tokens",
    ("extra_forbidden", "ignore_eos"): "use diffusion.ignore_eos",
    ("extra_forbidden", "structured_outputs"): "use response_format",
    ("extra_forbidden", "guided_json"): "use response_format",
    ("extra_forbidden", "guided_regex"): "use response_format",
    ("extra_forbidden", "messages"): "use /v1/chat/completions",
    ("extra_forbidden", "prompt"): "use /v1/completions",
}
_LEAVE = {"extra_forbidden": "leave it out"}
_SHOWN = 200
_SAID = 800  # of what pydantic says: it lists the names of all samplers


_MEMBERS = ("str", "int", "float", "bool")  # of unions, as pydantic calls them


def _path(problem: Mapping[str, Any]) -> list[str | int]:
    """Return the fields and indices that lead to a problem.

    Fields are identifiers; validators and members of unions have brackets in their names. Behind
    a union with a discriminator stands the kind that was given, which is no field.
    """
    parts: Sequence[str | int] = problem["loc"][1:]
    if parts[:1] == ("response_format",):
        parts = [parts[0], *parts[2:]]
    return [one for one in parts if isinstance(one, int) or _names_a_field(one)]


def _names_a_field(part: str) -> bool:
    return part.replace("_", "a").isalnum() and part not in _MEMBERS


def _fitted(problem: Mapping[str, Any]) -> tuple[int, int]:
    """Return how far into a value a problem lies."""
    path = _path(problem)
    return len(path), path[-1] if path and isinstance(path[-1], int) else 0


def _first(error: RequestValidationError) -> tuple[str | None, str]:
    """Return the field behind the first problem with a body, and a sentence about it."""
    first, *others = error.errors()
    field = first["loc"][:2]
    # Of a union every member complains: the one that fitted longest is what was meant.
    problem = max([first, *(one for one in others if one["loc"][:2] == field)], key=_fitted)
    param = ".".join(map(str, _path(problem)))[:_SHOWN] or None
    plain = _PLAIN.get(problem["type"])
    if plain is not None:
        said = plain.format(param=param or "the body")
        hint = _HINTS.get((problem["type"], param or ""), _LEAVE.get(problem["type"]))
        return param, f"{said}: {hint}" if hint else said
    reason = str(problem["msg"]).removeprefix("Value error, ")[:_SAID]
    return param, f"{param or 'the body'}: {reason[:1].lower()}{reason[1:]}"


def is_draining(scope: Scope) -> bool:
    """Return whether the application that a request came to was told to stop."""
    site = getattr(getattr(scope.get("app"), "state", None), "site", None)
    return bool(getattr(site, "draining", False))


async def _on_dlmc(request: Request, error: Exception) -> Response:
    if not isinstance(error, DlmcError):
        raise error
    return respond(*describe(error, draining=is_draining(request.scope)))


async def _on_validation(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    param, message = _first(error)
    return respond(400, body(400, message, param=param), {})


async def _on_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    message = error.detail
    if error.status_code == 404:
        message = f"there is no {request.url.path[:_SHOWN]}"
    if error.status_code == 405:
        message = f"{request.url.path[:_SHOWN]} does not take {request.method[:20]}"
    return respond(error.status_code, body(error.status_code, message), error.headers or {})


async def _on_any(_: Request, __: Exception) -> Response:
    return respond(500, internal(), {})


async def _on_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


def install(app: FastAPI) -> None:
    """Let every error of an application have the same form."""
    app.add_exception_handler(DlmcError, _on_dlmc)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_gone)
    app.add_exception_handler(Exception, _on_any)
