from pathlib import Path

import pytest

from dlmc.checkpoint import bounded_json
from dlmc_runtime.errors import CheckpointError


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a": 1, "a": 2}', "ambiguous (it has 'a' twice)"),
        (b'{"b": {"a": 1, "a": 2}}', "ambiguous"),
    ],
)
def test_refusals(tmp_path: Path, text: bytes, problem: str):
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        bounded_json.read_json(path)
    assert caught.value.message.startswith(f"{path} is {problem}")


def test_object(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text('{"a": {"b": [1, null]}}')
    assert bounded_json.read_json(path) == {"a": {"b": [1, None]}}


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounded_json, "MAX_JSON_BYTES", 8)
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": 12}')
    with pytest.raises(CheckpointError, match="larger than 8 bytes"):
        bounded_json.read_json(path)


def test_unreadable(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"cannot read .*No such file"):
        bounded_json.read_json(tmp_path / "config.json")


def test_any_value():
    assert bounded_json.parse_json(b'[{"a": 1}]') == [{"a": 1}]
    with pytest.raises(ValueError, match="ambiguous"):
        bounded_json.parse_json(b'[{"a": 1, "a": 1}]')
