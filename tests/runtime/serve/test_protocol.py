import logging
import socket
import time
from contextlib import suppress

import pytest

from dlmc_runtime.serve.settings import Settings

WAIT = 60.0
SHORT = 0.5
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
ENDLESS = b"POST /no HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def impatient(live, letters, monkeypatch):
    """A server that waits for a request `SHORT` seconds only, and for a reader as long."""
    monkeypatch.setattr("dlmc_runtime.serve.server._KEEP_ALIVE_SECONDS", SHORT)
    return live(letters(), Settings(stall_seconds=SHORT))


@pytest.fixture
def connect():
    """Return what connects to a server; connections end with the test."""
    opened = []

    def to(running, received=None):
        connection = socket.socket()
        opened.append(connection)
        if received is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
        connection.connect(("127.0.0.1", int(running.url.rpartition(":")[2])))
        connection.settimeout(WAIT)
        return connection

    yield to
    for connection in opened:
        connection.close()


def answered(running, connect, request):
    """Return a connection and the beginning of what a request over it is answered.

    A server without patience may hang up before it has heard of the request: it is asked again.
    """
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        connection = connect(running)
        with suppress(ConnectionError):
            connection.sendall(request)
            if answer := connection.recv(100):
                return connection, answer
    raise AssertionError("the server answers nobody")


def closed_while_sending(connection, data):
    """Send the same again and again, and return whether the server ends the connection."""
    connection.settimeout(SHORT / 4)
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        try:
            connection.sendall(data)
            if not connection.recv(1 << 16):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("data", [b"", b"a"])
def test_a_request_must_arrive_in_time_however_it_is_sent(impatient, connect, data):
    connection = connect(impatient)
    connection.sendall(data)
    assert closed_while_sending(connection, data)


def test_the_next_request_of_a_connection_must_arrive_in_time_too(impatient, connect):
    connection, answer = answered(impatient, connect, HEALTH + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert closed_while_sending(connection, b"a")


def test_a_body_that_was_refused_does_not_keep_a_connection(impatient, connect):
    connection, answer = answered(impatient, connect, ENDLESS)
    assert answer.startswith(b"HTTP/1.1 404")
    assert closed_while_sending(connection, b"1\r\na\r\n")


def test_what_is_in_work_takes_as_long_as_it_takes(impatient, connect):
    body = b'{"model":"test","prompt":"abc","max_tokens":3}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    request = head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    impatient.engine.close_gate()
    connection = None
    while connection is None or not impatient.engine.waiting.wait(2 * SHORT):
        connection = connect(impatient)
        with suppress(ConnectionError):  # the server had no patience: it is asked again
            connection.sendall(request)
    time.sleep(4 * SHORT)
    impatient.engine.open_gate()
    answer = connection.recv(1 << 16)
    while b'"text":"def"' not in answer:
        more = connection.recv(1 << 16)
        assert more, answer
        answer += more


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")
def test_who_takes_nothing_of_an_answer_is_dropped(impatient, connect):
    state = impatient.server.server_state
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline and not (state.total_requests and not state.connections):
        if not state.connections:  # not yet, or it was hung up on before it had asked
            connection = connect(impatient, received=4096)
            with suppress(ConnectionError):
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        time.sleep(SHORT / 4)
    assert state.total_requests
    assert not state.connections


def test_what_is_no_http_behind_a_refusal_is_no_defect(impatient, connect, caplog):
    connection, answer = answered(impatient, connect, ENDLESS)
    assert answer.startswith(b"HTTP/1.1 404")
    assert closed_while_sending(connection, b"no chunk\r\n")
    assert [record for record in caplog.records if record.exc_info] == []


def test_who_asks_for_a_websocket_is_answered_in_http(impatient, connect, caplog):
    asks = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    _, answer = answered(impatient, connect, HEALTH + asks + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert caplog.records == []


def test_the_access_log_shows_no_query(live, letters, connect, caplog, monkeypatch):
    running = live(letters())
    running.server.config.access_log = True
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)
    caplog.set_level("INFO", "uvicorn.access")
    connection = connect(running)
    connection.sendall(b"GET /health?key=hidden HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert '"GET /health HTTP/1.1" 200' in caplog.text
    assert "hidden" not in caplog.text
