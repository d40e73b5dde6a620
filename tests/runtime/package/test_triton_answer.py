import json

import fake_triton
import pytest

from dlmc_runtime.package.triton_answer import Answer


@pytest.fixture
def sender():
    return fake_triton.Sender()


@pytest.fixture
def answer(sender):
    return Answer(fake_triton, sender)


def event(data):
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def test_every_event_is_a_response(answer, sender):
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in ("grü", "n")]
    answer.begin(200, "text/event-stream")
    for chunk in chunks:
        answer.take(event(chunk))
    assert [one.values["text_output"] for one in sender.responses] == ["grü", "n"]
    answer.take(event("[DONE]"))
    answer.finish()
    found = sender.wait()
    assert [json.loads(one["event"]) for one in found[:2]] == chunks
    assert found[2] == {"text_output": "", "event": "[DONE]", "final": True}
    assert [one["final"] for one in found] == [False, False, True]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"text": "a"}]}, "a"),
        ({"choices": [{"message": {"content": "b"}}]}, "b"),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, "a"),
        ({"choices": [{"message": {"content": None}}]}, ""),
        ({"choices": []}, ""),
        ({"object": "other"}, ""),
    ],
)
def test_a_body_is_one_response(answer, sender, body, text):
    data = json.dumps(body).encode()
    answer.begin(200, "application/json")
    answer.take(data[:5])
    answer.take(data[5:])
    assert not sender.responses
    answer.finish()
    assert sender.wait() == [{"text_output": text, "event": data.decode(), "final": True}]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INVALID_ARG"),
        (404, "NOT_FOUND"),
        (413, "INVALID_ARG"),
        (429, "UNAVAILABLE"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (504, "UNAVAILABLE"),
    ],
)
def test_a_refusal_is_an_error_of_triton(answer, sender, status, code):
    answer.begin(status, "application/json")
    answer.take(b'{"error": {"message": "n is 0"}}')
    answer.finish()
    with pytest.raises(fake_triton.TritonError) as caught:
        sender.wait()
    assert caught.value.message == "n is 0"
    assert caught.value.code == getattr(fake_triton.TritonError, code)


def test_an_error_in_the_middle_is_the_last_response(answer, sender):
    answer.begin(200, "text/event-stream")
    answer.take(event({"choices": [{"text": "a"}]}) + event({"error": {"message": "late"}}))
    answer.finish()
    with pytest.raises(fake_triton.TritonError, match="late"):
        sender.wait()
    assert len(sender.responses) == 2


@pytest.mark.parametrize("status", [200, 499])
def test_an_answer_always_ends(answer, sender, status):
    """Even if the application says nothing more, as it does to a client that has gone."""
    answer.begin(status, "text/event-stream" if status == 200 else "")
    answer.finish()
    assert sender.wait() == []


def test_nothing_follows_an_error(answer, sender):
    answer.begin(200, "text/event-stream")
    answer.fail(500, "broken")
    answer.take(event({"choices": [{"text": "a"}]}))
    answer.finish()
    assert len(sender.responses) == 1
