import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from dlmc_runtime.errors import DlmcError, EngineError, UsageError
from dlmc_runtime.serve.server import bind
from dlmc_runtime.serve.settings import Settings

WAIT = 60.0
START = "from dlmc.cli.app import main; main()"
BODY = {"model": "tiny-sdar", "prompt": "add 12 and 30", "max_tokens": 64}
# Enough forwards to be in the middle of: one position each, and no end before the length.
LONG = {**BODY, "diffusion": {"ignore_eos": True, "sampler": "sequential"}, "max_tokens": 160}
# More than fits between a server and who does not read it: it goes on until its client leaves.
ENDLESS = {**LONG, "prompt": [LONG["prompt"]] * 64, "stream": True, "diffusing": True}


@pytest.fixture
def process(tiny_folder):
    """Start ``dlmc serve`` as a process of its own; returns it and its URL once it serves."""
    started = []

    def start(*options):
        command = [sys.executable, "-c", START, "serve", str(tiny_folder), "--port", "0", *options]
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(child)
        assert child.stderr is not None
        for line in child.stderr:
            if line.startswith("serving on "):
                return child, line.split()[-1]
        raise AssertionError("the server did not start")

    yield start
    for child in started:
        child.kill()
        child.wait(WAIT)
        if child.stderr is not None:
            child.stderr.close()


def test_a_port_is_taken_once():
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(DlmcError, match=f"port {port} of 127.0.0.1 is in use: give another"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["not a host", "203.0.113.7", "a" * 64, "a..b"])
def test_a_host_must_be_an_address_of_this_machine(host):
    with pytest.raises(UsageError, match="is no address"):
        bind(host, 0)


def test_a_server_answers_over_a_real_socket(live, letters):
    url = live(letters()).url
    body = {"model": "test", "prompt": "abc", "max_tokens": 3}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=WAIT)
    assert response.json()["choices"][0]["text"] == "def"
    assert "server" not in response.headers


def test_a_client_that_leaves_its_stream_frees_the_row_within_a_forward(live, letters):
    running = live(letters())
    engine, scheduler = running.engine, running.served.scheduler
    engine.close_gate()
    body = {"model": "test", "prompt": "abc", "max_tokens": 40, "stream": True}
    asked = httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=WAIT)
    with asked as response:
        lines = response.iter_lines()
        engine.let(3)
        next(lines)
    _left(running)
    before = engine.forwards
    engine.open_gate()
    assert scheduler.wait(WAIT)
    assert engine.forwards <= before + 1
    assert scheduler.statistics().cancelled == 1


def test_a_client_that_leaves_while_it_waits_frees_its_place(live, letters):
    running = live(letters())
    engine, scheduler = running.engine, running.served.scheduler
    engine.close_gate()
    port = int(running.url.rpartition(":")[2])
    body = b'{"model":"test","prompt":"abc","max_tokens":40}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), WAIT) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert engine.waiting.wait(WAIT)
    _left(running)
    engine.open_gate()
    assert scheduler.wait(WAIT)
    assert scheduler.statistics().cancelled == 1


def test_a_slow_reader_stalls_nobody(live, letters):
    running = live(letters())
    port = int(running.url.rpartition(":")[2])
    body = (
        b'{"model":"test","prompt":["' + b'","'.join([b"abc"] * 60) + b'"],'
        b'"max_tokens":45,"stream":true,"diffusing":true}'
    )
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        slow.recv(100)
        other = {"model": "test", "prompt": "abc", "max_tokens": 3}
        for _ in range(3):
            response = httpx.post(f"{running.url}/v1/completions", json=other, timeout=WAIT)
            assert response.json()["choices"][0]["text"] == "def"
        assert running.served.scheduler.wait(WAIT)
        assert running.served.scheduler.statistics().finished["length"] == 63


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_done_in_time_is_told_that_the_server_ends(live, letters, monkeypatch, stream):
    monkeypatch.setattr("dlmc_runtime.serve.server.CLOSING_SECONDS", WAIT)
    running = live(letters(), Settings(drain_seconds=0.05))
    engine = running.engine
    engine.close_gate()
    answers = []

    def ask():
        body = {"model": "test", "prompt": "abc", "max_tokens": 40, "stream": stream}
        answers.append(httpx.post(f"{running.url}/v1/completions", json=body, timeout=WAIT))

    asking = threading.Thread(target=ask)
    asking.start()
    assert engine.waiting.wait(WAIT)
    running.server.handle_exit(signal.SIGTERM, None)
    while running.served.scheduler.alive:  # until the time is up
        time.sleep(0.01)
    engine.open_gate()
    asking.join(WAIT)
    (answer,) = answers
    assert answer.status_code == (200 if stream else 503)
    text = answer.text.removeprefix("data: ") if stream else answer.text
    assert json.loads(text)["error"]["code"] == "draining"


def test_a_forward_for_nobody_may_come_back_while_a_server_drains(live, letters, monkeypatch):
    monkeypatch.setattr("dlmc_runtime.serve.models.CLOSING_SECONDS", 0.01)
    running = live(letters(), Settings(drain_seconds=WAIT))
    running.engine.close_gate()
    served = running.served
    ticket = served.scheduler.submit(served.generator.request("abc"), lambda _: None)
    assert running.engine.waiting.wait(WAIT)
    ticket.cancel()
    running.server.handle_exit(signal.SIGTERM, None)
    for _ in range(3):
        asyncio.run(running.server.on_tick(0))
    assert not running.server.should_exit
    assert served.scheduler.alive
    running.engine.open_gate()
    assert served.scheduler.wait(WAIT)
    asyncio.run(running.server.on_tick(0))
    assert running.server.should_exit


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_ends_also_where_a_forward_hangs(live, letters, stream):
    running = live(letters(), Settings(drain_seconds=WAIT))
    engine, served = running.engine, running.served
    engine.close_gate()
    answers = []

    def ask():
        body = {"model": "test", "prompt": "abc", "max_tokens": 40, "stream": stream}
        answers.append(httpx.post(f"{running.url}/v1/completions", json=body, timeout=WAIT))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert engine.waiting.wait(WAIT)
        running.server.handle_exit(signal.SIGTERM, None)
        running.server._deadline = 0.0
        for thread in (running.thread, asking):
            thread.join(WAIT / 2)  # the gate opens by itself after all of it
            assert not thread.is_alive()
        assert engine.forwards == 0
        with pytest.raises(EngineError, match="test does not come back from a forward"):
            served.close()
        assert not engine.closed
    finally:
        engine.open_gate()
    text = answers[0].text.removeprefix("data: ") if stream else answers[0].text
    assert json.loads(text)["error"]["code"] == "draining"
    assert served.scheduler.close(WAIT)
    served.close()
    assert engine.closed


@pytest.mark.slow
def test_sigterm_lets_what_runs_finish_and_nothing_else_in(process):
    child, url = process("--drain-timeout", "600")
    done = []
    many = {**LONG, "prompt": [LONG["prompt"]] * 3}

    def ask():
        done.append(httpx.post(f"{url}/v1/completions", json=many, timeout=WAIT))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    while _rows(url) < 6 * 3:
        time.sleep(0.01)
    with httpx.stream("POST", f"{url}/v1/completions", json=ENDLESS, timeout=WAIT):
        child.send_signal(signal.SIGTERM)
        while httpx.get(f"{url}/health", timeout=WAIT).status_code == 200:
            time.sleep(0.01)
        refused = httpx.post(f"{url}/v1/completions", json=BODY, timeout=WAIT)
    for thread in threads:
        thread.join(WAIT)
    assert child.wait(WAIT) == 0
    assert [response.status_code for response in done] == [200] * 6
    assert {response.json()["usage"]["completion_tokens"] for response in done} == {3 * 160}
    assert refused.status_code == 503
    assert "retry-after" in refused.headers


@pytest.mark.slow
def test_a_second_signal_ends_a_server_at_once(process):
    child, url = process("--drain-timeout", "600")
    with httpx.stream("POST", f"{url}/v1/completions", json=ENDLESS, timeout=WAIT):
        child.send_signal(signal.SIGINT)
        while httpx.get(f"{url}/health", timeout=WAIT).status_code == 200:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        assert child.wait(WAIT) == -signal.SIGINT


@pytest.mark.slow
def test_a_server_that_was_killed_can_be_started_again(process):
    child, url = process()
    first = httpx.post(f"{url}/v1/completions", json=BODY, timeout=WAIT).json()
    with httpx.stream(
        "POST", f"{url}/v1/completions", json={**LONG, "stream": True}, timeout=WAIT
    ) as response:
        lines = response.iter_lines()  # which hang up once nobody holds them
        next(lines)
        child.kill()
        assert child.wait(WAIT) == -signal.SIGKILL
    port = url.rpartition(":")[2]
    child, url = process("--port", port)
    assert url.endswith(port)
    again = httpx.post(f"{url}/v1/completions", json=BODY, timeout=WAIT).json()
    assert again["choices"] == first["choices"]
    child.send_signal(signal.SIGTERM)
    assert child.wait(WAIT) == 0


def _left(running):
    """Wait until the application works for nobody."""
    deadline = time.monotonic() + WAIT
    while running.app.state.site.active and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running.app.state.site.active == 0


def _rows(url):
    """How many rows a server has been asked for, whatever has become of them."""
    states = ("waiting", "active", "finished_total")
    names = tuple(f"dlmc_requests_{state}{{" for state in states)
    lines = httpx.get(f"{url}/metrics", timeout=WAIT).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(names))


@pytest.mark.parametrize("more", ["X-Long: " + "a" * (1 << 17), "Host: localhost"])
def test_headers_without_end_or_a_second_host_are_refused(live, letters, more):
    server = live(letters())
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), WAIT) as opened:
        opened.sendall(f"GET /health HTTP/1.1\r\nHost: localhost\r\n{more}\r\n\r\n".encode())
        with opened.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"400"
