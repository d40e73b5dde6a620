"""Arrays in Polygraphy's JSON, read without trusting the file.

Polygraphy's own decoder also takes torch tensors, which are pickles, zip archives, which may
unpack to any size, and a dozen classes of its own. Here an array is an array and nothing else is.
"""

import ast
import base64
import binascii
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from dlmc.validate.recording import Arrays
from dlmc_runtime.errors import UsageError

MAX_BYTES = 2 << 30
"""Size of the largest file that is read."""

_CLASS = "polygraphy_class"
_MAGIC = b"\x93NUMPY\x01\x00"
_TYPES = frozenset({"<i8", "<i4", "<f4", "<f2", "<f8", "|b1"})
_HINT = "save it again with dlmc validate --save-states, or polygraphy run --save-outputs"


def read_inputs(path: Path) -> list[Arrays]:
    """Return the inputs of every forward, as `replay.save_states` writes them.

    Raises:
        UsageError: the file is missing, too large, or holds anything else.
    """
    data = _load(path)
    if not isinstance(data, list):
        raise _odd(path, "is no list of inputs")
    return [_arrays(one, path) for one in data]


_LONGEST_NAME = 100  # of a runner; it goes into every report


def read_outputs(path: Path) -> tuple[str, list[Arrays]]:
    """Return the runner and its outputs of every forward, from Polygraphy's run results.

    Raises:
        UsageError: as `read_inputs`, or the results are of several runners.
    """
    data = _load(path)
    runs = data.get("lst") if _is(data, "RunResults") else None
    if not isinstance(runs, list) or len(runs) != 1 or not _is_pair(runs[0]):
        raise _odd(path, "does not hold the results of one runner")
    name, results = runs[0]
    if not all(_is(one, "IterationResult") for one in results):
        raise _odd(path, "holds something else than results")
    shown = name[:_LONGEST_NAME].encode("utf-8", "replace").decode()
    return shown, [_arrays(one.get("outputs"), path) for one in results]


def _is_pair(value: Any) -> bool:
    shaped = isinstance(value, list) and len(value) == 2
    return shaped and isinstance(value[0], str) and isinstance(value[1], list)


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})", _HINT) from None
    if len(text) > MAX_BYTES:
        raise _odd(path, f"is larger than {MAX_BYTES} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _odd(path, "is not valid JSON") from None


def _odd(path: Path, what: str) -> UsageError:
    return UsageError(f"{path} {what}", _HINT)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, dict) and value.get(_CLASS) == kind


def _arrays(value: Any, path: Path) -> Arrays:
    if not isinstance(value, dict) or _CLASS in value:
        raise _odd(path, "holds something else than arrays by name")
    return {name: _array(one, name, path) for name, one in value.items()}


def _array(value: Any, name: str, path: Path) -> np.ndarray:
    """Decode one array: base64 of a ``.npy`` file whose header fits its size."""
    if _is(value, "LazyArray") or _is(value, "LazyNumpyArray"):
        value = value.get("values")
    text = value.get("array") if _is(value, "ndarray") else None
    if not isinstance(text, str):
        raise _odd(path, f"holds no array under {name[:80]!r}")
    try:
        data = base64.b64decode(text, validate=True)
        _check_header(data)
        array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    except (binascii.Error, ValueError, EOFError, SyntaxError, MemoryError) as error:
        raise _odd(path, f"holds a damaged array under {name[:80]!r} ({error})") from None
    return array


def _check_header(data: bytes) -> None:
    """Refuse what is no ``.npy`` of plain numbers, before memory is taken for it.

    Raises:
        ValueError: it is something else, or says another size than it has.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("no .npy file of version 1")
    length = int.from_bytes(data[8:10], "little")
    header = ast.literal_eval(data[10 : 10 + length].decode("latin-1").strip())
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("an odd header")
    kind, shape = header["descr"], header["shape"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError("no plain numbers")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("an odd shape")
    count = 1
    for size in shape:
        count *= size
    if count * np.dtype(kind).itemsize != len(data) - 10 - length:
        raise ValueError("another size than its shape says")
