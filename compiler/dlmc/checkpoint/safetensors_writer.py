"""Writing safetensors files tensor by tensor, so that no more than one chunk is ever in memory."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlmc.checkpoint.checkpoint import INDEX, SINGLE_FILE
from dlmc.checkpoint.safetensors_header import DTYPE_BITS

_ALIGNMENT = 8


@dataclass(frozen=True)
class TensorPlan:
    """A tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


Values = Callable[[TensorPlan], Iterator[bytes]]
"""Yields the bytes of a tensor, little-endian, in pieces."""


def write_safetensors(path: Path, tensors: Sequence[TensorPlan], values: Values) -> None:
    """Write one file; raises `OSError` when the disk refuses."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.size
        shape = list(tensor.shape)
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors:
            for piece in values(tensor):
                file.write(piece)


def write_shards(
    folder: Path, tensors: Sequence[TensorPlan], values: Values, shard_bytes: int
) -> None:
    """Write ``model.safetensors``, or shards of at most ``shard_bytes`` and their index."""
    shards = numbered("model", tensors, shard_bytes)
    if len(shards) == 1:
        write_safetensors(folder / SINGLE_FILE, tensors, values)
        return
    placed: dict[str, str] = {}
    for name, shard in shards.items():
        write_safetensors(folder / name, shard, values)
        placed |= {tensor.name: name for tensor in shard}
    total = sum(tensor.size for tensor in tensors)
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": placed})


def numbered(
    stem: str, tensors: Sequence[TensorPlan], shard_bytes: int
) -> dict[str, list[TensorPlan]]:
    """Return shards of at most ``shard_bytes``, by names such as ``model-00001-of-00003``."""
    shards = list(_split(tensors, shard_bytes))
    return {
        f"{stem}-{number:05}-of-{len(shards):05}.safetensors": shard
        for number, shard in enumerate(shards, 1)
    }


def _split(tensors: Iterable[TensorPlan], shard_bytes: int) -> Iterator[list[TensorPlan]]:
    """Fill shards in order; a tensor larger than a shard gets one of its own."""
    shard: list[TensorPlan] = []
    filled = 0
    for tensor in tensors:
        if shard and filled + tensor.size > shard_bytes:
            yield shard
            shard, filled = [], 0
        shard.append(tensor)
        filled += tensor.size
    if shard:
        yield shard


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file the way Hugging Face tools lay it out."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
