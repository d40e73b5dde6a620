import asyncio
import json

import pytest

from dlmc_runtime.errors import EngineError
from dlmc_runtime.serve import stream


class Cancelled:
    """A run that only knows how often it was cancelled."""

    def __init__(self):
        self.times = 0

    def cancel(self):
        self.times += 1


def send_all(events, *, receive=None, send=None, stall=60.0):
    """Return the body that a client gets, the messages, and how often the run was cancelled."""
    sent, run = [], Cancelled()

    async def stay():
        return await asyncio.Event().wait()

    async def keep(message):
        sent.append(message)

    async def main():
        answer = stream.EventStream(run, events(), stall)
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
        for _ in range(5):
            seen.append("other")
            await asyncio.sleep(0)

    send_all(many)
    assert seen[:4] == ["event", "other"] * 2


def test_numbers_that_json_lacks_are_a_defect():
    with pytest.raises(ValueError, match="JSON"):
        stream.encode({"a": float("nan")})


def test_characters_of_several_bytes_are_whole(serving, letters, read_events):
    generator = letters()
    script = generator.engine.engine.script
    ids = generator.text.encode("a🙂é")
    script[3 : 3 + len(ids)] = ids
    running = serving(generator)
    response = running.complete(max_tokens=len(ids), stream=True, diffusing=True)
    *_, last = [event for event in read_events(response)[:-1] if "diffusion" in event]
    assert last["diffusion"]["text"] == "a🙂é"
