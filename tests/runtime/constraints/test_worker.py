import io
import resource
import sys

import pytest

from dlmc_runtime.constraints import worker


class Pipe:
    def __init__(self, data=b""):
        self.buffer = io.BytesIO(data)
        self.text = ""

    def write(self, text):
        self.text += text


@pytest.fixture
def answer(monkeypatch):
    def ask(said):
        streams = [Pipe(said), Pipe(), Pipe()]
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            monkeypatch.setattr(sys, name, stream)
        monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
        return worker.main(), streams[1].buffer.getvalue(), streams[2].text

    return ask


def test_the_transitions_are_counted_first(answer):
    status, said, _ = answer(b"6162\nab+")
    numbers = memoryview(said).cast("i")
    edges, finals, first = numbers[:3]
    assert status == 0
    assert first in numbers[3 : 3 + edges]
    assert set(numbers[3 + edges : 3 + 2 * edges]) == {97, 98}
    assert len(numbers) == 3 + 3 * edges + finals


@pytest.mark.parametrize(
    ("pattern", "status"),
    [(b"(", worker.WRONG), (b"ac", worker.EMPTY), (b"[ab]{9}", worker.TOO_LARGE)],
)
def test_what_cannot_be_made_has_a_status(answer, monkeypatch, pattern, status):
    monkeypatch.setattr(worker, "STATES", 5)
    assert answer(b"6162\n" + pattern)[0] == status
