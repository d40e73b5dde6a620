"""An API that streams invented canvases in the server's format, for tests of the page at `/`."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from dlmc_runtime.serve.playground import router

BLOCK = 16
# Tokens that each sampler fills in a forward.
SAMPLERS = {"low_confidence": 1, "confidence_threshold": 4, "random": 2}
KEY = "a-key"


@dataclass
class Script:
    """What a test wants of the server, and what the server saw.

    Attributes:
        asks_for_key: whether requests without `KEY` get a 401.
        gate: while it is cleared, runs wait after their third forward.
        pause: seconds between forwards.
        error: the answer to the next generation requests: status, body and headers.
        piece: bytes that are sent at a time; None for whole events.
        breaks: ``error`` sends one after the second forward, ``end`` closes the connection there.
        bodies: of the generation requests, with their paths.
        left: requests whose client went away before the end.
    """

    asks_for_key: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    pause: float = 0.0
    error: tuple[int, dict[str, Any], dict[str, str]] | None = None
    piece: int | None = None
    breaks: str = ""
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    left: int = 0

    def reset(self) -> None:
        """Become what a new one is."""
        self.__dict__.update(Script().__dict__)
        self.gate.set()


def words(text: str) -> list[str]:
    """Return the tokens of a text: words with the space before them."""
    return re.findall(r"\n|[ ]?[^\s]+|[ ]+", text)


def canvases(tokens: list[str], sampler: str) -> Iterator[dict[str, Any]]:
    """Yield the ``diffusion`` object of each forward over an answer."""
    rate, done, forward = SAMPLERS[sampler], 0, 0
    filled: set[int] = set()
    while done < len(tokens):
        start, end = done - done % BLOCK, min(len(tokens), done - done % BLOCK + BLOCK)
        # Every other position first, as a model that is unsure of neighbours would.
        order = sorted(set(range(start, end)) - filled, key=lambda at: (at % 2, at))
        filled |= set(order[:rate])
        forward += 1
        if set(range(start, end)) <= filled:
            done = end
        shown: list[dict[str, Any]] = []
        for at, text in enumerate(tokens):
            state = "final" if at < start else "committed" if at in filled else "masked"
            sure = 0.15 + 0.84 * ((at * 7 + forward) % 11) / 10 if start <= at < end else None
            told = (0, "…") if state == "masked" else (at, text)
            shown.append({"id": told[0], "text": told[1], "state": state, "confidence": sure})
        yield {
            "index": 0,
            "forward": forward,
            "start": start,
            "end": end,
            "tokens_per_forward": len(filled) / forward,
            "text": "".join(one["text"] for one in shown),
            "tokens": shown,
        }


def answer(path: str, body: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return what the invented model writes, and what it puts into the slots of a template."""
    if "template" in body:
        names = re.findall(r"<slot name=(\w+)", body["template"])
        slots = {name: f"the {name} of all" for name in names}
        text = re.sub(r"<slot name=(\w+)[^>]*/>", lambda m: slots[m[1]], body["template"])
        return text, slots
    prompt = body["messages"][-1]["content"] if path.startswith("chat") else body["prompt"]
    said = f"You wrote: {prompt}\nIn a canvas, words far apart may become clear at once, and "
    last = "later" if body.get("diffusion", {}).get("sampler") == "random" else "sooner"
    return f"{said}those between them {last} than one would think.", {}


async def events(script: Script, path: str, body: dict[str, Any]) -> AsyncIterator[str]:
    """Yield the event stream of a request."""
    text, slots = answer(path, body)
    sampler = body.get("diffusion", {}).get("sampler", "confidence_threshold")
    chat = path.startswith("chat")

    def event(choice: dict[str, Any], **extra: Any) -> str:
        chunk = {"choices": [{"index": 0, "finish_reason": None} | choice], **extra}
        return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"

    if chat and body.get("reasoning_effort") == "high":
        yield event({"delta": {"reasoning_content": "First I think."}})
    canvas: dict[str, Any] = {}
    sent = 0
    for canvas in canvases(words(text), sampler):
        yield event({"delta": {}} if chat else {"text": ""}, diffusion=canvas)
        while canvas["forward"] == 3 and not script.gate.is_set():
            await asyncio.sleep(0.01)
        if canvas["forward"] == 2 and script.breaks == "error":
            error = {"message": "the engine returned NaN", "type": "engine_error"}
            yield f"data: {json.dumps({'error': error})}\n\n"
        if canvas["forward"] == 2 and script.breaks:
            return
        await asyncio.sleep(script.pause)
        final = "".join(t["text"] for t in canvas["tokens"] if t["state"] == "final")
        if len(final) > sent:
            piece, sent = final[sent:], len(final)
            yield event({"delta": {"content": piece}} if chat else {"text": piece})
    last: dict[str, Any] = {"delta": {"content": text[sent:]}} if chat else {"text": text[sent:]}
    yield event(last | {"finish_reason": "stop"} | ({"slots": slots} if slots else {}))
    usage = {"prompt_tokens": 5, "completion_tokens": len(canvas["tokens"])}
    usage |= {"forwards": canvas["forward"]}
    rate = usage["completion_tokens"] / usage["forwards"]
    yield f"data: {json.dumps({'choices': [], 'usage': usage | {'tokens_per_forward': rate}})}\n\n"
    yield "data: [DONE]\n\n"


def create_app(script: Script) -> FastAPI:
    """Return the page and the invented endpoints."""
    app = FastAPI(openapi_url=None)
    app.include_router(router)

    def refused(request: Request) -> Response | None:
        if script.asks_for_key and request.headers.get("authorization") != f"Bearer {KEY}":
            error = {"message": "the request has no valid API key", "type": "invalid_request_error"}
            return JSONResponse({"error": error}, 401)
        return None

    @app.get("/v1/models")
    def models(request: Request) -> Response:
        own = {"name": "confidence_threshold", "threshold": 0.9}
        card = {"object": "model", "max_tokens": 64}
        listed = [
            card | {"id": "small", "samplers": list(SAMPLERS), "sampler": own},
            card | {"id": "tiny", "samplers": ["random"], "sampler": {"name": "random"}},
        ]
        return refused(request) or JSONResponse({"object": "list", "data": listed})

    @app.post("/v1/{path:path}")
    async def generate(path: str, request: Request) -> Response:
        if denied := refused(request):
            return denied
        body = await request.json()
        test = script.bodies  # which are new once the script is reset
        test.append((path, body))
        if script.error is not None:
            status, error, headers = script.error
            return JSONResponse({"error": error}, status, headers)

        async def noticed() -> AsyncIterator[bytes]:
            try:
                async for event in events(script, path, body):
                    data = event.encode()
                    size = script.piece or len(data)
                    for at in range(0, len(data), size):
                        yield data[at : at + size]
            except (asyncio.CancelledError, GeneratorExit):
                script.left += test is script.bodies
                raise

        return StreamingResponse(noticed(), media_type="text/event-stream")

    return app


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """Serve an app on loopback in a thread of its own, and give its address."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="warning", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
