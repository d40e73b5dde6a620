"""The header parser against files of every kind of damage."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dlmc.checkpoint.safetensors_header import read_header
from dlmc_runtime.errors import CheckpointError

Entries = dict[str, Any]


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD: Entries = {"a": entry(0, 8, [2]), "b": entry(8, 24, [2, 2])}


def raw(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return path


def test_locations(tmp_path: Path):
    arrays: dict[str, NDArray[Any]] = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.ones(5, np.float16),
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 4), np.float32),
    }
    path = write(tmp_path, save(arrays, {"format": "pt"}))
    found = read_header(path)
    assert found.keys() == arrays.keys()
    content = path.read_bytes()
    for name, array in arrays.items():
        where = found[name]
        assert where.file == path
        assert where.shape == array.shape
        assert content[where.offset : where.offset + where.length] == array.tobytes()
    assert found["half"].dtype == "F16"


DAMAGE: dict[str, tuple[Callable[[], Entries], str]] = {
    "overlap": (lambda: GOOD | {"b": entry(4, 20, [2, 2])}, "'b' overlaps"),
    "same range": (lambda: GOOD | {"c": entry(0, 8, [2])}, "overlaps"),
    "gap": (lambda: {"a": GOOD["a"], "b": entry(12, 28, [2, 2])}, "'b' follows a gap"),
    "gap at start": (lambda: {"a": entry(4, 12, [2])}, "'a' follows a gap"),
    "too few": (lambda: GOOD | {"b": entry(8, 20, [2, 2])}, "needs 16 bytes, not 12"),
    "other dtype": (lambda: GOOD | {"b": entry(8, 24, [2, 2], "F16")}, "needs 8 bytes, not 16"),
    "unknown dtype": (lambda: GOOD | {"b": entry(8, 24, [2, 2], "Q4")}, "unknown dtype 'Q4'"),
    "dtype no text": (lambda: GOOD | {"b": {**GOOD["b"], "dtype": ["F32"]}}, "unknown dtype"),
    "negative": (lambda: GOOD | {"b": entry(8, 24, [-2, -2])}, "no valid shape"),
    "fraction": (lambda: GOOD | {"b": {**GOOD["b"], "shape": [2.0, 2]}}, "no valid shape"),
    "boolean": (lambda: GOOD | {"b": {**GOOD["b"], "shape": [True, 4]}}, "no valid shape"),
    "rank": (lambda: GOOD | {"b": entry(8, 24, [1] * 17)}, "no valid shape"),
    "overflow": (lambda: GOOD | {"b": entry(8, 24, [1 << 62, 1 << 62])}, "needs"),
    "backwards": (lambda: GOOD | {"b": entry(24, 8, [2, 2])}, "no valid byte range"),
    "one offset": (lambda: GOOD | {"b": {**GOOD["b"], "data_offsets": [8]}}, "byte range"),
    "missing field": (lambda: GOOD | {"b": {"dtype": "F32", "shape": []}}, "lacks exactly"),
    "extra field": (lambda: GOOD | {"b": {**GOOD["b"], "x": 1}}, "lacks exactly"),
    "no entry": (lambda: GOOD | {"b": 3}, "lacks exactly"),
    "truncated": (lambda: GOOD | {"c": entry(24, 28, [1])}, "truncated: .* promises"),
    "surplus": (lambda: {"a": GOOD["a"]}, "16 bytes at its end belong to no tensor"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_entries(tmp_path: Path, name: str):
    entries, sentence = DAMAGE[name]
    path = write(tmp_path, raw(json.dumps(entries()).encode(), bytes(24)))
    with pytest.raises(CheckpointError, match=sentence) as caught:
        read_header(path)
    assert caught.value.message.startswith(f"{path} is damaged: ")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "0 bytes are too few"),
        (b"1234567", "7 bytes are too few"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "header of 9223372036854775808 bytes"),
        (b"\x03" + bytes(7) + b"{}", "header of 3 bytes"),
        (raw(b"[]", b""), "its header is not a JSON object"),
        (raw(b"{]", b""), "its header is not valid JSON"),
        (raw(b"\xff\xfe", b""), "its header is not valid JSON"),
        (raw(b"[" * 100_000, b""), "its header is nested too deeply"),
        (raw(b'{"a": 1, "a": 2}', b""), "its header is ambiguous .it has 'a' twice"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "no safetensors file"),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes, sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read_header(write(tmp_path, content))


def test_file_without_tensors(tmp_path: Path):
    assert read_header(write(tmp_path, raw(b"{}", b""))) == {}


def test_unreadable(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"cannot read .*No such file"):
        read_header(tmp_path / "model.safetensors")


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
checkpoints = st.dictionaries(st.text(min_size=1, max_size=8), shapes, max_size=5).filter(
    lambda entries: "__metadata__" not in entries
)


@given(checkpoints)
def test_agrees_with_the_reference_writer(tmp_path_factory: pytest.TempPathFactory, entries):
    arrays = {name: np.ones(shape, np.float32) for name, shape in entries.items()}
    path = write(tmp_path_factory.mktemp("written"), save(arrays))
    found = read_header(path)
    assert {name: where.shape for name, where in found.items()} == entries
    assert all(where.length == 4 * math.prod(where.shape) for where in found.values())


@given(st.data())
def test_what_is_accepted_lies_in_the_file(tmp_path_factory: pytest.TempPathFactory, data):
    """Damage a good file anywhere: either one clear refusal, or ranges that fit the file."""
    content = bytearray(raw(json.dumps(GOOD).encode(), bytes(24)))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.sampled_from(b'0123456789{}[],:"aF\x00\xff'))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = write(tmp_path_factory.mktemp("damaged"), bytes(content))
    try:
        found = read_header(path)
    except CheckpointError:
        return
    for where in found.values():
        assert 8 < where.offset <= where.offset + where.length <= len(content)
    try:
        reference = load(bytes(content))
    except (SafetensorError, KeyError):  # stricter, or a dtype that numpy lacks
        return
    assert {name: where.shape for name, where in found.items()} == {
        name: array.shape for name, array in reference.items()
    }
