"""The context cache: committed keys and values of every row, preallocated per profile."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.manifest import Model


class Cache:
    """Keys and values on the host, float32 [B,H_kv,C,D] a layer, and how far each row is filled."""

    def __init__(self, model: Model, batch: int, size: int) -> None:
        shape = (batch, model.num_key_value_heads, size, model.head_dim)
        self.size = size
        self.past: dict[str, NDArray[np.float32]] = {
            f"past_key_values.{layer}.{part}": np.zeros(shape, np.float32)
            for layer in range(model.num_hidden_layers)
            for part in ("key", "value")
        }
        self.filled = np.zeros(batch, dtype=np.int64)

    def write(self, row: int, count: int, present: Sequence[NDArray[np.float32]]) -> None:
        """Append the first ``count`` positions of ``present`` [B,H_kv,T,D] to a row.

        ``present`` lists key and value layer by layer, as the graph's outputs do.
        """
        start = int(self.filled[row])
        for past, own in zip(self.past.values(), present, strict=True):
            past[row, :, start : start + count] = own[row, :, :count]
        self.filled[row] = start + count
