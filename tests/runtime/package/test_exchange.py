import asyncio
import json

import pytest
from hypothesis import given, strategies

from dlmc_runtime.package.exchange import EventReader, Exchange
from dlmc_runtime.serve.stream import ALIVE


class Receiver:
    def __init__(self):
        self.head, self.body = None, b""

    def begin(self, status, media_type):
        self.head = (status, media_type)

    def take(self, data):
        self.body += data


async def read(receive):
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    return body


async def echo(scope, receive, send):
    said = {"path": scope["path"], "body": (await read(receive)).decode()}
    headers = [(b"Content-Type", b"application/json; charset=utf-8")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(said).encode()})


async def until_gone(scope, receive, send):
    await read(receive)
    message = await receive()
    await send({"type": "http.response.start", "status": 499})
    await send({"type": "http.response.body", "body": message["type"].encode()})


async def broken(scope, receive, send):
    raise ZeroDivisionError


def test_an_application_sees_the_request_and_is_heard():
    receiver = Receiver()
    asyncio.run(Exchange(echo, "/v1/completions", b'{"a": 1}', receiver).run())
    assert receiver.head == (201, "application/json")
    assert json.loads(receiver.body) == {"path": "/v1/completions", "body": '{"a": 1}'}


def test_hanging_up_is_a_disconnection():
    async def talk(receiver):
        exchange = Exchange(until_gone, "/", b"{}", receiver)
        running = asyncio.create_task(exchange.run())
        await asyncio.sleep(0)
        assert not running.done()
        exchange.hang_up()
        await running

    receiver = Receiver()
    asyncio.run(talk(receiver))
    assert receiver.body == b"http.disconnect"


def test_what_an_application_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Exchange(broken, "/", b"", Receiver()).run())


EVENTS = strategies.lists(strategies.text("aé€🙂{}: ", min_size=1).map(str.strip), max_size=5)


@given(EVENTS, strategies.lists(strategies.integers(1, 9), min_size=1))
def test_events_are_whole_however_their_bytes_are_cut(events, sizes):
    data = b"".join(f"data: {event}\n\n".encode() + ALIVE for event in events)
    reader, at, turn = EventReader(), 0, 0
    found: list[str] = []
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == events


def test_an_unfinished_event_waits():
    reader = EventReader()
    assert list(reader.feed(b"data: on")) == []
    assert list(reader.feed(b"e\n\n")) == ["one"]
