import io
import sys

from dlmc.export import progress
from dlmc.export.progress import byte_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(monkeypatch, stream: io.StringIO, total: int) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    with byte_progress("hashing", total) as advance:
        advance(total // 2)
        advance(total - total // 2)
    return stream.getvalue()


def test_shows_a_bar_to_a_person_who_waits(monkeypatch):
    assert "hashing" in draw(monkeypatch, Terminal(), 1 << 30)


def test_says_nothing_about_quick_work(monkeypatch):
    assert draw(monkeypatch, Terminal(), progress._WORTH_A_BAR - 1) == ""


def test_says_nothing_into_a_pipe(monkeypatch):
    assert draw(monkeypatch, io.StringIO(), 1 << 40) == ""
