"""Levenshtein editing: LLaDA2.2 also deletes and inserts while it denoises a block."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Candidates,
    EditIds,
    Ints,
    Prediction,
    Rewritten,
    needed,
)
from dlmc_runtime.samplers.schedules import quota
from dlmc_runtime.samplers.token_editing import TokenEditing

_TRIES = 5  # at a block that has not been there before


class Levenshtein(TokenEditing):
    """Commit what is sure, and replace, delete and insert decided tokens within the block.

    As `token_editing`, but a predicted token may be one of two that change the text's length: one
    takes its position out, the other puts a mask before what the position held. The block keeps
    its length: it is cut, or filled up with masks. Every step fills as many masks as the schedule
    has for it and as there are masks that were put in; after ``steps`` it fills all.

    The block is final once a forward saw no mask and changed nothing. Its last change comes when
    none of the masks it began with was there for ``max_post_steps`` forwards, or after
    ``max_steps`` in all: that forward fills all masks, and takes the best candidate that does not
    change the length.

    A step that would lead where the block has been before takes the next best candidate at the
    least sure position it changes, up to five times and as far as the graph keeps candidates. (The
    reference draws that position; the least sure one is FluxServe's choice.)
    """

    source: ClassVar[str] = (
        "LLaDA2.2 `generate`, as described for FluxServe's `decoders/levenshtein.py`"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"candidates"})
    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "threshold", "edit_threshold", "max_post_steps", "max_steps"}
    )
    defaults: ClassVar[Mapping[str, float]] = {
        "threshold": 0.5,
        "edit_threshold": 0.0,
        "max_post_steps": 16,
        "max_steps": 1000,
    }

    def begin(self) -> None:
        """Forget the blocks that were seen, and which masks were there from the start."""
        super().begin()
        self._first: Bools | None = None
        self._seen: set[bytes] = set()

    def _from_the_start(self, block: BlockState) -> Bools:
        """Return the positions of masks with which the block began, filled or not, bool [n]."""
        return block.masked.copy() if self._first is None else self._first

    def wanted(self, block: BlockState) -> int:
        """Return how many masks this step fills at least."""
        put_in = int((block.masked & ~self._from_the_start(block)).sum())
        # After the last step the quota is all masks of the start.
        return quota(block.masks, self.config.steps or len(block.masked), block.step) + put_in

    def rewrite(self, prediction: Prediction, block: BlockState) -> Rewritten:
        """Return the block with masks filled, and tokens replaced, deleted and inserted."""
        said = needed(prediction.candidates, "candidates")
        old = needed(block.tokens, "the block's tokens")
        edits = needed(block.edits, "the ids that delete and insert")
        first = self._from_the_start(block)
        filled = self.select(prediction, block)
        last = self._is_last(block, first, filled)
        left = block.masked & ~filled
        if last:
            filled = block.masked
        written = filled | self.replaced(prediction, block)
        tokens = np.where(written, prediction.tokens, old)
        if last:
            tokens = np.where(written & changes_length(tokens, edits), other(said, edits), tokens)
        else:
            tokens = self._new(tokens, old, said)
        after, source, put_in = edited(tokens, old, written, edits)
        masked = (block.masked & ~(filled & ~changes_length(tokens, edits)))[source] | put_in
        self._first = first[source] & ~put_in
        still = not block.masked.any() and bool((after == old).all())
        return Rewritten(after, masked, last or still, forced=last and bool(left.any()))

    def _is_last(self, block: BlockState, first: Bools, filled: Bools) -> bool:
        """Return whether this step must leave a block that can stay."""
        waiting = block.masked & first
        self._post = 0 if waiting.any() else self._post + 1
        limit = self.option("max_post_steps")
        spent = self._post >= limit if limit else not (waiting & ~filled).any()
        return spent or block.step + 1 >= self.option("max_steps")

    def _new(self, tokens: Ints, old: Ints, said: Candidates) -> Ints:
        """Return the tokens, or others near them that the block has not held yet."""
        tokens, rank = tokens.copy(), np.zeros(len(tokens), np.int64)
        for _ in range(_TRIES):
            changed = np.flatnonzero(tokens != old)
            if tokens.tobytes() not in self._seen or not len(changed):
                break
            sure = said.logprobs[changed, rank[changed]]
            position = changed[np.argmin(sure)]
            if rank[position] + 1 >= said.ids.shape[1]:
                break
            rank[position] += 1
            tokens[position] = said.ids[position, rank[position]]
        self._seen.add(tokens.tobytes())
        return tokens


def changes_length(tokens: Ints, edits: EditIds) -> Bools:
    """Return which tokens delete or insert, bool [n]."""
    found: Bools = (tokens == edits.delete) | (tokens == edits.split)
    return found


def other(said: Candidates, edits: EditIds) -> Ints:
    """Return the best candidate of each position that leaves the length alone, int64 [n]."""
    rank = (~changes_length(said.ids, edits)).argmax(axis=1)
    found: Ints = np.take_along_axis(said.ids, rank[:, None], 1)[:, 0]
    return found


def edited(tokens: Ints, old: Ints, written: Bools, edits: EditIds) -> tuple[Ints, Ints, Bools]:
    """Delete and insert in a block of ``n`` positions, from the left.

    Args:
        tokens: int64 [n], what was written, and what stays.
        old: int64 [n], what was there before: an insertion puts a mask before it.
        written: bool [n]; an id that was not written now is text.
        edits: the ids that delete and insert.

    Returns:
        int64 [n], the block, cut or filled up with masks; int64 [n], where each position comes
        from; bool [n], which are masks that come from nowhere.
    """
    count = len(tokens)
    delete, split = (written & (tokens == token) for token in (edits.delete, edits.split))
    source = np.repeat(np.arange(count), 1 - delete.astype(np.int64) + split)
    put_in = split[source] & (np.diff(source, prepend=-1) > 0)  # the first of the two
    kept = np.where(split[source], old[source], tokens[source])
    after = np.where(put_in, edits.mask, kept)
    missing = (0, max(count - len(source), 0))
    return (
        np.pad(after, missing, constant_values=edits.mask)[:count],
        np.pad(source, missing)[:count],
        np.pad(put_in, missing, constant_values=True)[:count],
    )
