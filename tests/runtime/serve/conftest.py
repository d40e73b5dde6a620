"""What tests of the server share: models, an application in this process, and a live server."""

import json
import os
import shutil
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve.app import create_app
from dlmc_runtime.serve.models import Catalog, Served
from dlmc_runtime.serve.server import Server, bind, prepare
from dlmc_runtime.serve.settings import Settings

WAIT = 60.0
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class GatedEngine:
    """An engine that runs no forward until it is let; open to begin with."""

    def __init__(self, engine):
        self.engine, self.forwards = engine, 0
        self.waiting = threading.Event()
        self._go, self._open = threading.Semaphore(0), True

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        self.waiting.set()
        if not self._open:
            assert self._go.acquire(timeout=WAIT)
        self.forwards += 1
        return self.engine.forward(inputs, cache, stores)

    def close_gate(self):
        self._open = False
        self._go = threading.Semaphore(0)
        self.waiting.clear()

    def let(self, forwards=1):
        self._go.release(forwards)

    def open_gate(self):
        self._open = True
        self._go.release(10_000)


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


@pytest.fixture(scope="session")
def letters(manifest, scripted, codec):
    """A generator whose token at position p is letter p of the alphabet, again and again.

    Prompts are text of single bytes; it remembers nothing, and runs forwards only while its
    gate, ``generator.engine``, is open.
    """

    def make(regime="block", **changes):
        script = np.resize(codec.encode(ALPHABET), 26 * 8)
        return Generator(GatedEngine(scripted(manifest(regime, **changes), script)), codec)

    return make


@pytest.fixture(scope="session")
def random_model(torch_engine, codec):
    """A generator over a random network: answers depend on everything that is fed."""

    def make(regime="block", **changes):
        return Generator(torch_engine(regime, **changes), codec)

    return make


@dataclass
class Running:
    """An application in this process: ``client`` talks to it, ``served`` is its first model."""

    client: TestClient
    served: Served

    @property
    def engine(self):
        return self.served.generator.engine

    def post(self, path, body, **more):
        return self.client.post(path, json=body, **more)

    def complete(self, **fields):
        return self.post("/v1/completions", {"model": "test", "prompt": "abc", **fields})

    def refusal(self, path, body, **more):
        """Return (status, param, message) of a request that is refused."""
        response = self.post(path, body, **more)
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return response.status_code, error["param"], error["message"]


def events(response):
    """Return the events of a stream as objects; the last is the text ``[DONE]``."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


@pytest.fixture(scope="session")
def read_events():
    """Return the function that reads a stream."""
    return events


def _run_out(served):
    for pool in served.scheduler._pools.values():
        for seat in pool.seats.values():
            seat.ticket.deadline = seat.ticket.submitted


@pytest.fixture(scope="session")
def run_out():
    """Return what lets the time of a model's requests be up that a closed gate holds."""
    return _run_out


@contextmanager
def _running(generator, settings=None, limits=None, name="test", **client):
    served = Served(name, generator, Scheduler(generator, limits))
    app = create_app(Catalog([served]), settings or Settings())
    with TestClient(app, raise_server_exceptions=False, **client) as opened:
        yield Running(opened, served)


@pytest.fixture
def serving():
    """Start an application: ``serving(generator, settings, limits)``; stopped with the test."""
    with ExitStack() as stack:
        yield lambda *given, **more: stack.enter_context(_running(*given, **more))


@pytest.fixture(scope="session")
def shared(letters):
    """An application over `letters` that all tests share: for requests that change nothing."""
    with _running(letters()) as running:
        yield running


@dataclass
class Live:
    """A server that listens on a port of this machine, on a thread."""

    url: str
    served: Served
    app: object
    server: Server
    thread: threading.Thread

    @property
    def engine(self):
        return self.served.generator.engine


@contextmanager
def _live(generator, settings=None, limits=None, name="test"):
    served = Served(name, generator, Scheduler(generator, limits))
    app = create_app(Catalog([served]), settings or Settings())
    opened, ready = bind("127.0.0.1", 0), threading.Event()
    server = prepare(app, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        assert ready.wait(WAIT)
        yield Live(f"http://127.0.0.1:{opened.getsockname()[1]}", served, app, server, thread)
    finally:
        server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive()


@pytest.fixture
def live():
    """Start a real server: ``live(generator, settings, limits)``; stopped with the test."""
    with ExitStack() as stack:
        yield lambda *given, **more: stack.enter_context(_live(*given, **more))


@pytest.fixture(scope="module")
def live_for_module():
    """The same as `live`, for all tests of a module."""
    with ExitStack() as stack:
        yield lambda *given, **more: stack.enter_context(_live(*given, **more))


@pytest.fixture(scope="session")
def tiny_folder(_tiny_originals, tmp_path_factory) -> Path:
    """The tiny SDAR, exported and built."""
    from dlmc.targets.build import build_engine, plan_build
    from dlmc.targets.profiles import ProfileRequest

    folder: Path = tmp_path_factory.mktemp("served") / "tiny-sdar"
    shutil.copytree(_tiny_originals("tiny-sdar"), folder, copy_function=os.link)
    build_engine(plan_build(folder, "onnxruntime-cpu", ProfileRequest()))
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder):
    """A real server over the tiny SDAR that all tests share, called ``tiny-sdar``."""
    with Generator.load(tiny_folder) as generator, _live(generator, name="tiny-sdar") as running:
        yield running
