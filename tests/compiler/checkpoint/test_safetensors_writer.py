import json
from collections.abc import Iterator
from pathlib import Path

from safetensors.numpy import load_file

from dlmc.checkpoint.safetensors_header import read_header
from dlmc.checkpoint.safetensors_writer import TensorPlan, write_safetensors, write_shards

TENSORS = [
    TensorPlan("a", "F32", (2, 3)),
    TensorPlan("b.ü", "F16", (5,)),
    TensorPlan("empty", "F32", (0, 4)),
    TensorPlan("c", "I64", ()),
]


def counting(tensor: TensorPlan) -> Iterator[bytes]:
    """Yield the bytes 0, 1, 2, ... one by one."""
    for value in range(tensor.size):
        yield bytes([value])


def test_reference_reader_agrees(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, TENSORS, counting)
    found = load_file(path)
    assert {name: array.shape for name, array in found.items()} == {
        tensor.name: tensor.shape for tensor in TENSORS
    }
    assert all(array.tobytes() == bytes(range(array.nbytes)) for array in found.values())
    assert all(where.offset % 2 == 0 for where in read_header(path).values())


def test_one_file_has_no_index(tmp_path: Path):
    write_shards(tmp_path, TENSORS, counting, shard_bytes=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_shards_and_index(tmp_path: Path):
    write_shards(tmp_path, TENSORS, counting, shard_bytes=12)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    first, second, third = (f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3))
    assert index == {
        "metadata": {"total_size": 24 + 10 + 8},
        "weight_map": {"a": first, "b.ü": second, "empty": second, "c": third},
    }
    for name, file in index["weight_map"].items():
        assert name in read_header(tmp_path / file)
