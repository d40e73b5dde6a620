"""Attention masks: who may see whom, by regime and kind of forward."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Kind = Literal["denoise", "store"]

_OwnMask = Callable[[Ints, int], Bools]


def _everyone(positions: Ints, block_length: int) -> Bools:
    del block_length
    return np.ones((len(positions), len(positions)), dtype=bool)


def _block_causal(positions: Ints, block_length: int) -> Bools:
    blocks = positions // block_length
    return blocks[:, None] >= blocks[None, :]


def _causal(positions: Ints, block_length: int) -> Bools:
    del block_length
    return positions[:, None] >= positions[None, :]


_OWN: dict[tuple[str, Kind], _OwnMask] = {
    ("full", "denoise"): _everyone,
    ("block", "denoise"): _block_causal,
    ("block", "store"): _block_causal,
    ("context", "denoise"): _everyone,
    ("context", "store"): _causal,
}


def fill(
    mask: Bools, regime: str, kind: Kind, start: int, end: int, cached: int, block_length: int
) -> None:
    """Write one row's mask in place.

    Args:
        mask: bool [T,C+T]; true = may attend.
        regime: attention regime of the family.
        kind: ``denoise``, or ``store`` where the forward's keys and values are kept.
        start: first position fed; the ``n = end - start`` positions fill the front of T.
        end: one past the last position fed.
        cached: valid cache entries, at the front of C.
        block_length: positions per block, counted from position 0.

    Padding rows see only themselves, so that no softmax is empty; nobody sees padding.
    """
    block = mask.shape[0]
    cache, count = mask.shape[1] - block, end - start
    mask[:] = False
    mask[:count, :cached] = True
    own = _OWN[regime, kind](np.arange(start, end), block_length)
    mask[:count, cache : cache + count] = own
    padding = np.arange(count, block)
    mask[padding, cache + padding] = True
