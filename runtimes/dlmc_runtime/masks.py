"""Attention masks: who may see whom in one forward."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.blocks import Blocks

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Own = Literal["everyone", "blocks", "causal"]


def own(kind: Own, positions: Ints, blocks: Blocks) -> Bools:
    """Return who sees whom among the positions fed, bool [n,n]."""
    if kind == "everyone":
        return np.ones((len(positions), len(positions)), dtype=bool)
    order = positions if kind == "causal" else blocks.index(positions)
    return order[:, None] >= order[None, :]


def fill(mask: Bools, among: Bools, visible: int, hole: tuple[int, int] = (0, 0)) -> None:
    """Write one row's mask in place.

    Args:
        mask: bool [T,C+T]; true = may attend.
        among: bool [n,n], who sees whom among the ``n`` positions fed, which fill the front of T.
        visible: cache entries that they see, at the front of C; all where it has fewer.
        hole: entries among those that are hidden, from the first to one past the last.

    Padding rows see only themselves, so that no softmax is empty; nobody sees padding.
    """
    block, count = mask.shape[0], len(among)
    cache = mask.shape[1] - block
    mask[:] = False
    mask[:count, : min(visible, cache)] = True
    mask[:count, slice(*hole)] = False
    mask[:count, cache : cache + count] = among
    padding = np.arange(count, block)
    mask[padding, cache + padding] = True


def narrow(mask: Bools, positions: Ints, count: int, window: int) -> None:
    """Hide what is farther away than ``window``, in place.

    Args:
        mask: bool [T,C+T], as `fill` wrote it; entry i of the cache holds position i.
        positions: int64 [T], of the positions fed and of padding.
        count: how many of them are fed.
        window: how far to either side a position sees.
    """
    cache = mask.shape[1] - mask.shape[0]
    keys = np.concatenate((np.arange(cache), positions))
    mask[:count] &= np.abs(positions[:count, None] - keys) <= window


def held(filled: int, size: int) -> Ints:
    """Return the position that each slot of a ring holds, int64 [size]; -1 where it is empty.

    Args:
        filled: how many positions were stored, each in the slot of its number modulo ``size``.
        size: slots.
    """
    slots = np.arange(size)
    return np.where(slots < filled, filled - 1 - (filled - 1 - slots) % max(size, 1), -1)


def trail(mask: Bools, positions: Ints, filled: int, context: int) -> None:
    """Hide what lies more than ``context`` positions before the one that looks, in place.

    Args:
        mask: bool [T,S+T], as `fill` wrote it, over a cache that is a ring of S slots.
        positions: int64 [n], of the positions fed, which fill the front of T.
        filled: positions stored before them.
        context: how far back a position sees.
    """
    cache, count = mask.shape[1] - mask.shape[0], len(positions)
    keys = np.concatenate((held(filled, cache), positions))
    mask[:count, : cache + count] &= keys >= positions[:, None] - context


def add_shadow(among: Bools, start: int, shadow: tuple[int, int]) -> Bools:
    """Return who sees whom where the positions of ``shadow`` are fed again behind the others.

    A shadow sees every position but its own, and the other shadows; nobody else sees shadows
    (WINO, arXiv 2507.18578).
    """
    count, extra = len(among), shadow[1] - shadow[0]
    both = np.zeros((count + extra, count + extra), dtype=bool)
    both[:count, :count] = among
    both[count:] = True
    place = np.arange(extra)
    both[count + place, shadow[0] - start + place] = False
    return both
