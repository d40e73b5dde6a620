"""Where each tensor lies in a safetensors file, without reading any of them.

The format (https://github.com/huggingface/safetensors): the size of a JSON header as 8 bytes,
little-endian; the header; the tensors' bytes without gaps, at offsets counted from the header's
end. Export attaches weights by these offsets, so each is checked against the file first.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dlmc.checkpoint.bounded_json import parse_object
from dlmc_runtime.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
MAX_RANK = 16

DTYPE_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "C64": 64,
}


@dataclass(frozen=True)
class TensorLocation:
    """One tensor: ``length`` bytes at ``offset`` from the start of ``file``."""

    file: Path
    offset: int
    length: int
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> dict[str, TensorLocation]:
    """Return the tensors of a safetensors file, in the order of their bytes.

    Raises:
        CheckpointError: the file cannot be read, is truncated or padded, or its header is not
            one: bad JSON, a key twice, unknown dtypes, or byte ranges that leave the file,
            overlap, leave gaps or disagree with dtype and shape.
    """
    try:
        with path.open("rb") as file:
            return _parse(file, path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path} ({error.strerror})", "check the file") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}", "download or write it again") from None


def _parse(file: BinaryIO, path: Path) -> dict[str, TensorLocation]:
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise ValueError(f"its {size} bytes are too few for a safetensors file")
    header_length = int.from_bytes(file.read(8), "little")
    if header_length > min(size - 8, MAX_HEADER_BYTES):
        raise ValueError(
            f"it is truncated or no safetensors file (header of {header_length} bytes)"
        )
    try:
        entries = parse_object(file.read(header_length))
    except ValueError as error:
        raise ValueError(f"its header is {error}") from None
    entries.pop("__metadata__", None)
    start = 8 + header_length
    tensors = {name: _location(name, entry, path, start) for name, entry in entries.items()}
    # A tensor without elements may share its offset with the next one; it comes first.
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].length)))
    _check_coverage(ordered, start, size)
    return ordered


def _location(name: str, entry: Any, path: Path, start: int) -> TensorLocation:
    shown = name[:120]
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {shown!r} lacks exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"tensor {shown!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not _naturals(shape) or len(shape) > MAX_RANK:
        raise ValueError(f"tensor {shown!r} has no valid shape")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"tensor {shown!r} has no valid byte range")
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits != (end - begin) * 8:
        raise ValueError(
            f"tensor {shown!r} ({dtype} {shape}) needs {bits // 8} bytes, not {end - begin}"
        )
    return TensorLocation(path, start + begin, end - begin, dtype, tuple(shape))


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 63 for value in values
    )


def _check_coverage(ordered: dict[str, TensorLocation], start: int, size: int) -> None:
    reached = start
    for name, tensor in ordered.items():
        if tensor.offset != reached:
            what = "overlaps the tensor before it" if tensor.offset < reached else "follows a gap"
            raise ValueError(f"tensor {name[:120]!r} {what}")
        reached += tensor.length
    if reached > size:
        raise ValueError(f"it is truncated: {size} bytes where its header promises {reached}")
    if reached < size:
        raise ValueError(f"{size - reached} bytes at its end belong to no tensor")
