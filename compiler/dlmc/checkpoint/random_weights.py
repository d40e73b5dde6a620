"""Random values for a network nobody trained, drawn in pieces."""

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc.checkpoint.safetensors_writer import TensorPlan, Values

_PIECE = 1 << 22
_DEVIATION = 0.02


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 values to bfloat16, to nearest even, and return their bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _encode(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return bfloat16_bits(values)
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype])


def random_weights(seed: int) -> Values:
    """Return a source of values: ones for vectors (norms), N(0, 0.02²) for matrices.

    A tensor's values depend on ``seed`` and its name alone, not on how the file is split.
    """

    def values(tensor: TensorPlan) -> Iterator[bytes]:
        rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
        left = math.prod(tensor.shape)
        while left:
            count = min(left, _PIECE)
            if len(tensor.shape) == 1:
                drawn = np.ones(count, np.float32)
            else:
                drawn = rng.standard_normal(count, np.float32) * np.float32(_DEVIATION)
            yield _encode(drawn, tensor.dtype).tobytes()
            left -= count

    return values
