import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dlmc.bench.load import InFlight, drive
from dlmc.bench.remote import KEY, Posts, Remote, Site, bench_server, counted
from dlmc.bench.served import Load, Sharing
from dlmc.bench.serving import ServeOptions
from dlmc_runtime.errors import EngineError, UsageError

PAGE = """# HELP dlmc_forwards_total Forwards by what they were for.
# TYPE dlmc_forwards_total counter
dlmc_forwards_total{kind="denoise",model="tiny"} 3.0
dlmc_forwards_total{kind="commit+denoise",model="tiny"} 1.0
dlmc_forwards_total{kind="denoise",model="other"} 9.0
dlmc_batch_rows_total{model="tiny"} 6.0
dlmc_batch_room_total{model="tiny"} 8.0
dlmc_forward_seconds_total{model="tiny"} 1.5e+00
dlmc_busy_seconds_total{model="tiny"} 2.0
"""
USAGE = {
    "completion_tokens": 3,
    "forwards": 2,
    "prompt_tokens_details": {"cached_tokens": 1},
}
GOOD = (
    {"choices": [{"text": ""}]},
    {"choices": [{"text": "a"}]},
    {"choices": [{"text": "b c"}]},
    {"choices": [], "usage": USAGE},
)


class Server(ThreadingHTTPServer):
    """A server whose answers a test sets, and which remembers what it was asked."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.page, self.events, self.end, self.status = PAGE, GOOD, "data: [DONE]\n\n", 200
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200 if self.path == "/metrics" else 404, self.server.page.encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers.get("Authorization")))
        sent = "".join(f"data: {json.dumps(event)}\n\n" for event in self.server.events)
        self.answer(self.server.status, (sent + self.server.end).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def called(server, count=1):
    return drive(Posts(Site(server.url, "tiny"), [{"seed": 0}] * count), count, InFlight(2))


def test_a_stream_becomes_a_call(server):
    calls = called(server, 3)
    assert len(calls) == 3
    for call in calls:
        assert (call.text, call.made, call.error) == ("ab c", "ab c", "")
        assert (call.tokens, call.forwards, call.cached) == (3, 2, 1)
        assert call.sent < call.first_block <= call.ended
        assert call.admitted is None


@pytest.mark.parametrize(
    ("status", "events", "end", "problem"),
    [
        (429, (), "", "HTTP 429"),
        (200, ({"error": {"type": "server_error"}},), "", "server_error"),
        (200, GOOD[:2], "", "no end"),
        (200, (), "data: {\n\n", "JSONDecodeError"),
        (200, ([],), "", "ValueError"),
        (200, ({"choices": [{}]},), "", "KeyError"),
    ],
)
def test_what_goes_wrong_is_named(server, status, events, end, problem):
    server.status, server.events, server.end = status, events, end
    (call,) = called(server)
    assert call.error == problem


def test_nobody_listens(server):
    quiet = Posts(Site("http://127.0.0.1:1", "tiny"), [{}])
    (call,) = drive(quiet, 1, InFlight(1))
    assert call.error == "Connection refused"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "file:///etc/passwd", "http://"])
def test_what_is_no_address(url):
    with pytest.raises(UsageError, match="--url is"):
        Site(url, "tiny")


def test_metrics_of_a_model_are_read():
    assert counted(PAGE, "tiny") == Sharing({"denoise": 3, "commit+denoise": 1}, 6, 8, 1.5, 2.0)
    assert counted(PAGE, "other") is None
    assert counted("<html>", "tiny") is None


def test_what_was_shared_is_the_difference_of_metrics(server, monkeypatch):
    remote = Remote(Site(server.url + "/v1/", "tiny"), [{}] * 2)
    later = PAGE.replace(" 3.0", " 5.0").replace(" 6.0", " 9.0").replace(" 8.0", " 12.0")
    pages = iter([PAGE, later])
    with monkeypatch.context() as patch:
        patch.setattr(Handler, "do_GET", lambda one: one.answer(200, next(pages).encode()))
        calls, sharing = remote.together(InFlight(2))
    assert len(calls) == 2
    assert sharing == Sharing({"denoise": 2}, 3, 4, 0.0, 0.0)
    server.page = ""
    assert remote.together(InFlight(1))[1] is None
    assert len(remote.alone()) == 2


OPTIONS = ServeOptions(requests=2, load=Load(concurrency=2), lengths=(3, 6), max_new_tokens=9)


def test_a_report_about_a_server(server, tiny, monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    root = tiny["tiny-sdar"]
    given = {"sampler": "sequential", "steps": 2, "temperature": 0.5, "top_p": None}
    report = bench_server(root, server.url, replace(OPTIONS, given=given))
    assert (report.bundle, report.engine) == ("tiny-sdar", server.url)
    assert report.found.together.tokens == 6
    assert report.found.same == 2
    paths, bodies, keys = zip(*server.asked, strict=True)
    assert set(paths) == {"/v1/completions"}
    assert set(keys) == {"Bearer secret"}
    assert len(bodies) == 1 + 2 + 2
    first = bodies[0]
    assert 3 <= len(first.pop("prompt")) <= 6
    assert first == {
        "model": "tiny-sdar",
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "diffusion": {"sampler": "sequential", "steps": 2, "ignore_eos": True},
        "temperature": 0.5,
        "max_tokens": 9,
    }


def test_questions_are_asked_as_text(server, tiny, tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"prompt": "sort 3 1 2", "answer": "ab c"}))
    options = replace(OPTIONS, tasks=path, lengths=None, max_new_tokens=None)
    report = bench_server(tiny["tiny-sdar"], server.url, options)
    assert (report.found.together.asked, report.found.together.exact) == (2, 2)
    body = server.asked[0][1]
    assert "sort 3 1 2" in body["prompt"]
    assert "max_tokens" not in body
    assert body["diffusion"] == {}


def test_a_server_that_does_not_know_the_model(server, tiny):
    server.status = 404
    with pytest.raises(EngineError, match=r"does not answer as tiny-sdar \(HTTP 404\)"):
        bench_server(tiny["tiny-sdar"], server.url, OPTIONS)


def test_the_real_server_is_understood(shared_root):
    pytest.importorskip("fastapi", reason="the server needs the serve extra")
    from dlmc_runtime.generate import Generator
    from dlmc_runtime.scheduler import Scheduler
    from dlmc_runtime.serve.app import create_app
    from dlmc_runtime.serve.models import Catalog, Served
    from dlmc_runtime.serve.server import bind, prepare
    from dlmc_runtime.serve.settings import Settings

    with Generator.load(shared_root) as generator:
        served = Served("tiny-sdar", generator, Scheduler(generator))
        opened, ready = bind("127.0.0.1", 0), threading.Event()
        live = prepare(create_app(Catalog([served]), Settings()), ready.set)
        thread = threading.Thread(target=live.run, kwargs={"sockets": [opened]})
        thread.start()
        try:
            assert ready.wait(60)
            url = f"http://127.0.0.1:{opened.getsockname()[1]}"
            found = bench_server(shared_root, url, replace(OPTIONS, requests=4)).found
        finally:
            live.should_exit = True
            thread.join(60)
    assert (found.alone.failed, found.together.failed) == ({}, {})
    assert found.alone.tokens == found.together.tokens == 4 * 9
    assert found.same == 4
    assert found.sharing is not None
    assert found.sharing.rows == found.together.row_forwards
    assert found.sharing.busy_seconds >= found.sharing.forward_seconds > 0
