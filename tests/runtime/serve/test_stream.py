import asyncio
import json
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dlmc_runtime.errors import EngineError
from dlmc_runtime.events import Denoised
from dlmc_runtime.row import Request
from dlmc_runtime.serve import stream
from dlmc_runtime.serve.jobs import Job, Run, Update


class Cancelled:
    """A run that only knows how often it was cancelled."""

    def __init__(self):
        self.times = 0

    def cancel(self):
        self.times += 1


def send_all(events, *, receive=None, send=None, stall=60.0, quiet=60.0):
    """Return the body that a client gets, the messages, and how often the run was cancelled."""
    sent, run = [], Cancelled()

    async def stay():
        return await asyncio.Event().wait()

    async def keep(message):
        sent.append(message)

    async def main():
        answer = stream.EventStream(run, events(), stall, quiet)
        await answer({"type": "http", "headers": []}, receive or stay, send or keep)

    asyncio.run(main())
    return b"".join(message.get("body", b"") for message in sent).decode(), sent, run.times


async def two():
    yield {"a": 1}
    yield {"text": "é\n"}


def test_events_are_data_lines_and_the_last_says_done():
    body, sent, cancelled = send_all(two)
    assert body == 'data: {"a":1}\n\ndata: {"text":"é\\n"}\n\ndata: [DONE]\n\n'
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert cancelled


def test_comments_go_out_while_there_is_nothing_to_say():
    commented = asyncio.Event()

    async def late():
        yield {"a": 1}
        await commented.wait()
        yield {"a": 2}

    sent = []

    async def send(message):
        sent.append(message.get("body", b""))
        if sent[-1] == stream.ALIVE:
            commented.set()

    send_all(late, send=send, quiet=0.01)
    events = [body for body in sent if body and body != stream.ALIVE]
    assert events == [b'data: {"a":1}\n\n', b'data: {"a":2}\n\n', stream.DONE]
    assert stream.ALIVE.startswith(b":")  # a comment
    assert stream.ALIVE.endswith(b"\n\n")


def test_a_client_that_leaves_while_comments_go_out_closes_the_events():
    closed = []

    async def silent():
        try:
            await asyncio.Event().wait()
            yield {}
        finally:
            closed.append(True)

    commented, sent = asyncio.Event(), []

    async def send(message):
        sent.append(message.get("body", b""))
        if sent[-1] == stream.ALIVE:
            commented.set()

    async def leave():
        await commented.wait()
        return {"type": "http.disconnect"}

    _, _, cancelled = send_all(silent, receive=leave, send=send, quiet=0.005)
    assert stream.ALIVE in sent
    assert stream.DONE not in sent
    assert (closed, bool(cancelled)) == ([True], True)


def test_an_error_of_ours_is_the_last_event():
    async def broken():
        yield {"a": 1}
        raise EngineError("no", "go")

    body, sent, cancelled = send_all(broken)
    assert json.loads(body.split("\n\n")[1].removeprefix("data: "))["error"]["message"] == "no: go"
    assert "[DONE]" not in body
    assert sent[-1]["more_body"] is False
    assert cancelled


def test_a_defect_is_told_without_its_insides(caplog):
    async def broken():
        yield {"a": 1}
        raise RuntimeError("secret")

    body, _, _ = send_all(broken)
    assert "secret" not in body
    assert '"type":"server_error"' in body
    assert "secret" in caplog.text


def test_a_client_that_leaves_ends_the_stream_and_its_run():
    closed = []

    async def endless():
        try:
            while True:
                yield {"a": 1}
                await asyncio.sleep(0)
        finally:
            closed.append(True)

    async def leave():
        return {"type": "http.disconnect"}

    _, _, cancelled = send_all(endless, receive=leave)
    assert closed
    assert cancelled


def test_a_reader_that_stalls_is_dropped():
    async def stuck(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    _, _, cancelled = send_all(two, send=stuck, stall=0.01)
    assert cancelled


def test_events_that_come_at_once_leave_the_loop_to_others():
    seen = []

    async def many():
        other = asyncio.get_running_loop().create_task(elsewhere())
        for number in range(10):
            seen.append("event")
            yield {"a": number}
        await other

    async def elsewhere():
        for _ in range(100):
            seen.append("other")
            await asyncio.sleep(0)

    send_all(many)
    assert seen.count("event") == 10
    assert "event event" not in " ".join(seen)


def test_numbers_that_json_lacks_are_a_defect():
    with pytest.raises(ValueError, match="JSON"):
        stream.encode({"a": float("nan")})


def test_a_canvas_tells_what_is_final_and_how_sure_each_token_is(shared, codec):
    ids = np.array([*codec.encode("abcxx"), 63, 63])
    masked = np.array([False, False, False, True, True, True, True])
    event = Denoised(0, 2, 1, 7, ids, masked, np.array([0.5, 0.25, 0.125, 0.5, 0.5, 0.5]))
    request = SimpleNamespace(holes=(), max_new_tokens=5)
    run = cast("Run", SimpleNamespace(job=Job(shared.served, [cast("Request", request)])))
    told = stream.canvas(run, Update(0, count=2, canvas=event))
    assert told is not None
    tokens = told.pop("tokens")
    assert [one["text"] for one in tokens] == [*"abc", "…", "…"]
    assert [one["state"] for one in tokens] == [*["final"] * 2, "committed", *["masked"] * 2]
    assert [one["confidence"] for one in tokens] == [None, 0.5, 0.25, 0.125, 0.5]
    assert told == {
        "index": 0,
        "forward": 2,
        "start": 1,
        "end": 5,
        "tokens_per_forward": 1.5,
        "text": "abc……",
    }


def test_characters_of_several_bytes_are_whole(serving, letters, read_events):
    generator = letters()
    script = generator.engine.engine.script
    ids = generator.text.encode("a🙂é")
    script[3 : 3 + len(ids)] = ids
    running = serving(generator)
    response = running.complete(max_tokens=len(ids), stream=True, diffusing=True)
    *_, last = [event for event in read_events(response)[:-1] if "diffusion" in event]
    assert last["diffusion"]["text"] == "a🙂é"


@pytest.mark.parametrize("error", [EngineError("no", "go"), RuntimeError("no")])
def test_a_reader_that_takes_no_error_is_dropped_quietly(error):
    def fail():
        raise error

    async def broken():
        yield fail()

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    _, _, cancelled = send_all(broken, send=send, stall=0.01)
    assert cancelled
