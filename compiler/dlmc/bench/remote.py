"""Load on a server that runs already, over HTTP."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib import error, parse, request

from dlmc.bench.load import Ask, Call, InFlight, Pace, drive
from dlmc.bench.machine import this_machine
from dlmc.bench.served import Advance, ServingReport, Sharing, compare
from dlmc.bench.serving import ServeOptions, questions
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.text import TextCodec

KEY = "DLMC_API_KEY"
"""Environment variable with the key that a server wants."""

_LONGEST_LINE = 4 << 20  # bytes of an event
_LONGEST_PAGE = 16 << 20  # bytes of all metrics
_SAMPLE = re.compile(r"(\w+)\{(.*?)\} ([0-9.e+-]+)$", re.MULTILINE | re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_OF_THE_BODY = ("temperature", "top_k", "top_p")  # the other options are the sampler's


@dataclass(frozen=True)
class Site:
    """A server and a model there.

    Attributes:
        url: its base, such as ``http://127.0.0.1:8000``.
        model: what it calls the model.
        seconds: after which a request that says nothing has failed.
    """

    url: str
    model: str
    seconds: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        parts = parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--url is {self.url!r}", "give one like http://127.0.0.1:8000")

    def open(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a request, to be closed; POST where there is a body."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        address = self.url.rstrip("/").removesuffix("/v1") + path
        asked = request.Request(address, data, headers)  # noqa: S310  (checked)
        return request.urlopen(asked, timeout=self.seconds)  # noqa: S310  (likewise)


class Posts:
    """Requests to ``/v1/completions``, each on a thread of its own."""

    def __init__(self, site: Site, bodies: Sequence[Mapping[str, Any]]) -> None:
        self._site, self._bodies = site, bodies
        self._ended: dict[int, Call] = {}

    def send(self, index: int, done: Callable[[], None]) -> None:
        """Send a request; what goes wrong is in its `Call`."""

        def run() -> None:
            try:
                self._ended[index] = _post(self._site, self._bodies[index])
            finally:
                done()

        threading.Thread(target=run, daemon=True).start()

    def calls(self) -> list[Call]:
        """Return what became of all that were sent."""
        return [self._ended[index] for index in sorted(self._ended)]


def _post(site: Site, body: Mapping[str, Any]) -> Call:
    sent, first = time.monotonic(), None
    text, problem = "", ""
    usage: dict[str, Any] = {}
    try:
        with site.open("/v1/completions", body) as answer:
            for event in _events(answer):
                problem = problem or str((event.get("error") or {}).get("type", ""))
                usage = event.get("usage") or usage
                added = "".join(choice["text"] for choice in event.get("choices", ()))
                if added and first is None:
                    first = time.monotonic()
                text += added
    except error.HTTPError as refusal:
        refusal.close()
        problem = f"HTTP {refusal.code}"
    except error.URLError as failure:
        problem = getattr(failure.reason, "strerror", None) or str(failure.reason)
    except (OSError, ValueError, KeyError, TypeError) as failure:
        problem = type(failure).__name__
    if not (usage or problem):
        problem = "no end"
    return Call(
        sent,
        time.monotonic(),
        first_block=first,
        tokens=int(usage.get("completion_tokens", 0)),
        forwards=int(usage.get("forwards", 0)),
        cached=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)),
        made=text,
        text=text,
        error=problem,
    )


def _events(answer: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events.

    Raises:
        ValueError: it is something else.
    """
    while line := answer.readline(_LONGEST_LINE):
        kind, _, data = line.decode().strip().partition(":")
        if kind != "data" or data.strip() == "[DONE]":
            continue
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        yield event


class Remote:
    """A model of a server."""

    def __init__(self, site: Site, bodies: Sequence[Mapping[str, Any]]) -> None:
        self.site, self.bodies = site, bodies

    def alone(self) -> list[Call]:
        """Serve requests one at a time."""
        return drive(Posts(self.site, self.bodies), len(self.bodies), InFlight(1))

    def together(self, pace: Pace) -> tuple[list[Call], Sharing | None]:
        """Serve requests as they come."""
        before = self._counted()
        calls = drive(Posts(self.site, self.bodies), len(self.bodies), pace)
        after = self._counted()
        return calls, None if before is None or after is None else after.since(before)

    def _counted(self) -> Sharing | None:
        """Return what the server's metrics say; None where it has none."""
        try:
            with self.site.open("/metrics") as answer:
                return counted(answer.read(_LONGEST_PAGE).decode(), self.site.model)
        except (OSError, ValueError):
            return None


def counted(page: str, model: str) -> Sharing | None:
    """Read metrics; None where they tell nothing about forwards of a model."""
    forwards: dict[str, int] = {}
    told: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(page):
        named = dict(_LABEL.findall(labels))
        if named.get("model") != model:
            continue
        if name == "dlmc_forwards_total":
            forwards[named.get("kind", "")] = int(float(value))
        told[name] = float(value)
    try:
        return Sharing(
            forwards,
            int(told["dlmc_batch_rows_total"]),
            int(told["dlmc_batch_room_total"]),
            told["dlmc_forward_seconds_total"],
            told["dlmc_busy_seconds_total"],
        )
    except KeyError:
        return None


def bench_server(
    root: Path, url: str, options: ServeOptions, advance: Advance = lambda _: None
) -> ServingReport:
    """Measure a server that runs already, and goes by the name of the bundle's folder there.

    Args:
        root: the bundle it serves: prompts are made with its tokenizer.
        url: the server.
        options: what to ask; limits are the server's own.
        advance: called with a few words before each part of the work.

    Raises:
        UsageError: it is no address, or a tasks file is unreadable.
        BundleError: the bundle does not load.
        EngineError: nobody answers there.
    """
    site = Site(url, root.name)
    bundle = Bundle.open(root, weights=False)
    spec = bundle.manifest.text
    codec = None if spec is None else TextCodec.load(bundle.root, spec)
    asks = questions(root, bundle.manifest, bundle.manifest.profiles, codec, options)
    bodies = [_body(site, ask, options) for ask in asks]
    advance("warming up")
    first = _post(site, bodies[0])
    if first.error:
        raise EngineError(
            f"{url} does not answer as {root.name} ({first.error})",
            f"dlmc serve {root} serves it; a key goes into {KEY}",
        )
    return ServingReport(
        bundle=root.name,
        engine=url,
        machine=this_machine(),
        max_new_tokens=options.max_new_tokens or bundle.manifest.max_new_tokens,
        sampler=dict(options.given),
        seed=options.seed,
        found=compare(Remote(site, bodies), asks, options.load, advance),
    )


def _body(site: Site, ask: Ask, options: ServeOptions) -> dict[str, Any]:
    given = {key: value for key, value in options.given.items() if value is not None}
    own = {key: given.pop(key) for key in _OF_THE_BODY if key in given}
    if options.ignore_eos or not isinstance(ask.prompt, str):
        given["ignore_eos"] = True
    most = {} if options.max_new_tokens is None else {"max_tokens": options.max_new_tokens}
    return {
        "model": site.model,
        "prompt": ask.prompt,
        "seed": ask.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "diffusion": given,
        **own,
        **most,
    }
