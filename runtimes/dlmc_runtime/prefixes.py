"""Committed blocks that later requests use again: the beginnings that texts have in common."""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.cache import Cache, Saved
from dlmc_runtime.row import Row

_DIGEST_BYTES = 32


@dataclass
class Trail:
    """How far a row's pieces are known, and their digests: one a piece, each of all before it."""

    end: int = 0
    digests: list[bytes] = field(default_factory=list)


class PrefixStore:
    """Keys and values of committed pieces by the tokens that made them, the last used ones.

    A piece is used again only under the very same tokens from position 0 on, at the very same
    boundaries, so that nothing but rounding can tell a row that used one from a row that did not.
    At least one piece of a prompt is computed, since what its last position says begins the answer.

    Args:
        limit: most bytes; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.nbytes = limit, 0
        # What a digest is made with is nobody's to know: tokens cannot be chosen to collide.
        self._key = os.urandom(_DIGEST_BYTES)
        self._kept: OrderedDict[bytes, Saved] = OrderedDict()

    def load(self, row: Row, cache: Cache, place: int) -> Trail:
        """Let a row that joins begin with what is kept of its prompt; ``place`` is its slot."""
        trail = Trail()
        if not self._serves(row):
            return trail
        found: list[Saved] = []
        digests: list[bytes] = []
        for end, digest in self._pieces(row, trail, row.regime.prompt_end - 1):
            saved = self._kept.get(digest)
            if saved is None:
                break
            found.append(saved)
            digests.append(digest)
            if saved.whole:
                trail = Trail(end, [*digests])
        if trail.end:
            self._touch(trail)
            cache.load(place, found[: len(trail.digests)])
            row.cached = row.resumed = trail.end
        return trail

    def save(self, row: Row, cache: Cache, place: int, trail: Trail) -> None:
        """Keep what a row has stored since ``trail``, and move ``trail`` on."""
        if not self._serves(row):
            return
        fresh = [*self._pieces(row, trail, row.cached)]
        if not fresh:
            return
        for end, digest in fresh:
            start, trail.end = trail.end, end
            # A piece whose beginnings were dropped is of no use to anybody.
            follows = not trail.digests or trail.digests[-1] in self._kept
            trail.digests.append(digest)
            kept = self._kept.get(digest)
            better = kept is None or (not kept.whole and end == int(cache.filled[place]))
            if follows and better:
                self._keep(digest, cache, place, (start, end))
        self._touch(trail)
        while self.nbytes > self.limit:
            _, dropped = self._kept.popitem(last=False)
            self.nbytes -= dropped.nbytes

    def _serves(self, row: Row) -> bool:
        return self.limit > 0 and row.slots == 1 and row.regime.piece_end(0) is not None

    def _keep(self, digest: bytes, cache: Cache, place: int, span: tuple[int, int]) -> None:
        try:
            saved = cache.save(place, *span)
        except MemoryError:  # of the device: what is kept already stays
            return
        before = self._kept.pop(digest, None)
        self.nbytes += saved.nbytes - (0 if before is None else before.nbytes)
        self._kept[digest] = saved

    def _touch(self, trail: Trail) -> None:
        """Make pieces the last used ones, the first piece last: others need those before them."""
        for digest in reversed(trail.digests):
            if digest in self._kept:
                self._kept.move_to_end(digest)

    def _pieces(self, row: Row, trail: Trail, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield end and digest of the pieces after ``trail`` that end at ``last`` or before."""
        start, digest = trail.end, trail.digests[-1] if trail.digests else b""
        while True:
            end = row.regime.piece_end(start)
            if end is None or end > last or end <= start:
                return
            digest = self._digest(digest, row.canvas[start:end])
            yield end, digest
            start = end

    def _digest(self, before: bytes, tokens: NDArray[np.int64]) -> bytes:
        hashed = hashlib.blake2b(before, key=self._key, digest_size=_DIGEST_BYTES)
        hashed.update(tokens.tobytes())
        return hashed.digest()
