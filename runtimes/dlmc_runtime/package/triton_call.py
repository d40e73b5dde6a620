"""What a request to the Triton model asks of the HTTP API's application."""

import json
from dataclasses import dataclass
from typing import Any

from dlmc_runtime.errors import UsageError

ENDPOINTS = ("chat/completions", "completions", "fim/completions", "edit/completions")
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Call:
    """An endpoint's path and the JSON text of a body."""

    path: str
    body: bytes


def read_call(inputs: dict[str, bytes], parameters: dict[str, Any], model: str) -> Call:
    """Read a request.

    Args:
        inputs: ``request``, the JSON body of an endpoint, or ``text_input``, a prompt; and
            ``endpoint``, one of `ENDPOINTS`. Where that is absent, a body with messages is a
            chat, and anything else a completion.
        parameters: fields of the body besides a ``text_input``.
        model: the name of the model, which bodies may leave out.

    Raises:
        UsageError: the inputs do not go together, or name no endpoint. What is wrong with the
            body is for the endpoint to say.
    """
    body, text = inputs.get("request"), inputs.get("text_input")
    if (body is None) == (text is None):
        raise UsageError("request and text_input exclude each other", "give one of them")
    if len(body or text or b"") > MAX_BYTES:
        raise UsageError(f"the request is larger than {MAX_BYTES} bytes", "shorten it")
    if body is None:
        if "prompt" in parameters:
            raise UsageError("prompt is given beside text_input", "give one of them")
        fields = {"model": model, "prompt": _decoded("text_input", text or b""), **parameters}
        return Call(_path(inputs, fields), json.dumps(fields).encode())
    if parameters:
        raise UsageError(
            f"{min(parameters)!r} is given beside request", "write it into the request's JSON"
        )
    parsed = _parsed(body)
    if isinstance(parsed, dict) and "model" not in parsed:
        # Spliced in: parsing and writing again would hide what is wrong with the text.
        rest = body.lstrip()[1:].lstrip()
        comma = b"" if rest.startswith(b"}") else b","
        body = b'{"model":' + json.dumps(model).encode() + comma + rest
    return Call(_path(inputs, parsed), body)


def _parsed(body: bytes) -> object:
    """Return what a text holds; None where it is no JSON, which is for the endpoint to say."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _path(inputs: dict[str, bytes], fields: object) -> str:
    default = "chat/completions" if isinstance(fields, dict) and "messages" in fields else ""
    given = _decoded("endpoint", inputs.get("endpoint", b""))
    endpoint = given.removeprefix("/v1/") or default or "completions"
    if endpoint not in ENDPOINTS:
        raise UsageError(
            f"there is no endpoint {endpoint[:80]!r}", f"choose one of {', '.join(ENDPOINTS)}"
        )
    return f"/v1/{endpoint}"


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 at byte {error.start}", "send text") from None
