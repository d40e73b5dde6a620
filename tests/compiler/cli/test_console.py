import pytest

from dlmc.cli.console import harmless, note, on_terminal, progress, say, say_json, size, table


def test_a_table_is_aligned():
    assert table([("a", 1), ("long", 22)], ("x", "y")) == "x     y\na     1\nlong  22"


def test_a_table_needs_no_header():
    assert table([("a", ""), ("b", "c")]) == "a\nb  c"


def test_an_empty_table_is_its_header():
    assert table([], ("x", "y")) == "x  y"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (16_060_000_000, "16.1 GB"), (10**18, "1e+06 TB")],
)
def test_size(count, text):
    assert size(count) == text


def test_control_characters_are_shown_not_obeyed():
    assert harmless("a\tb\n\x1b[2J\r\x7f\x9b") == "a\tb\n␛[2J␍␡\ufffd"


def test_results_and_notes_go_to_different_streams(capsys):
    say("result")
    note("note")
    say_json({"ü": [1]})
    captured = capsys.readouterr()
    assert captured.out == 'result\n{"ü": [1]}\n'
    assert captured.err == "note\n"
    assert not on_terminal()


def test_a_closed_stdout_is_no_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    assert not on_terminal()


def test_progress_is_for_a_person_who_watches(capsys):
    with progress() as advance:
        advance("loading")
    assert capsys.readouterr().err == ""
