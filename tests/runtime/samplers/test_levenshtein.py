from itertools import pairwise

import blocks
import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from dlmc_runtime.samplers.base import BlockState, EditIds
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.levenshtein import Levenshtein, edited

VOCAB = 8
DELETE, SPLIT, MASK = 6, 7, 8
IDS = EditIds(mask=MASK, delete=DELETE, split=SPLIT)


def model(seed, stickiness, fondness):
    """Return logits [n,VOCAB] of any block, which prefer its tokens, and to change its length."""

    def logits(canvas):
        found = np.random.default_rng([seed, *canvas]).normal(size=(len(canvas), VOCAB)) * 2
        found[:, [DELETE, SPLIT]] += fondness
        for i, token in enumerate(canvas):
            if token < DELETE:
                found[i, token] += stickiness
        return found

    return logits


def quota(masks, steps, step):
    return masks // steps + (1 if step < masks % steps else 0)


class Reference:
    """LLaDA2.2 over one block, position by position and over the whole vocabulary."""

    def __init__(self, canvas, logits, steps, threshold, edit, max_post, max_steps):
        self.canvas, self.logits = list(canvas), logits
        self.prompt = [token != MASK for token in canvas]
        self.first = [token == MASK for token in canvas]
        self.masks = sum(self.first)
        self.steps, self.threshold, self.edit = steps, threshold, edit
        self.max_post, self.max_steps = max_post, max_steps
        self.post = self.step = self.escapes = 0
        self.seen, self.history = set(), [list(canvas)]

    def run(self):
        while not self.forward():
            self.step += 1
        return self.history

    def order(self, position):
        """Return the vocabulary, the best token of a position first."""
        return sorted(range(VOCAB), key=lambda token: (-self.p[position][token], token))

    def masked(self):
        return [i for i, t in enumerate(self.canvas) if t == MASK and not self.prompt[i]]

    def chosen(self):
        """Return the masks that are filled."""
        masks = self.masked()
        if self.step >= self.steps:
            return masks
        need = quota(self.masks, self.steps, self.step)
        need += sum(not self.first[i] for i in masks)
        sure = [i for i in masks if self.p[i][self.order(i)[0]] > self.threshold]
        if len(sure) >= need:
            return sure
        return sorted(masks, key=lambda i: (-self.p[i][self.order(i)[0]], i))[:need]

    def forward(self):
        old = list(self.canvas)
        self.p = blocks.softmax(self.logits(old)).tolist()
        masks = self.masked()
        waiting = [i for i in masks if self.first[i]]
        self.post = 0 if waiting else self.post + 1
        fill = self.chosen()
        final = self.step >= self.max_steps - 1
        if self.max_post:
            final = final or self.post >= self.max_post
        else:
            final = final or set(waiting) <= set(fill)
        if final:
            fill = masks
        new = list(old)
        for i in range(len(old)):
            best = self.order(i)[0]
            changes = (
                not self.prompt[i] and old[i] not in (best, MASK) and self.p[i][best] > self.edit
            )
            if i in fill or (i not in masks and changes):
                if final:
                    best = next(token for token in self.order(i) if token not in (DELETE, SPLIT))
                new[i] = best
        if not final:
            self.escape(new, old)
        self.scan(new, old)
        self.history.append(list(self.canvas))
        return final or (not masks and self.canvas == old)

    def escape(self, new, old):
        for _ in range(5):
            changed = [i for i in range(len(new)) if new[i] != old[i]]
            if tuple(new) not in self.seen or not changed:
                break
            at = min(changed, key=lambda i: (self.p[i][new[i]], i))
            order = self.order(at)
            new[at] = order[order.index(new[at]) + 1]
            self.escapes += 1
        self.seen.add(tuple(new))

    def scan(self, new, old):
        length, canvas, first = len(new), [], []
        for i, token in enumerate(new):
            if self.prompt[i] or token not in (DELETE, SPLIT):
                canvas.append(token)
                first.append(self.first[i])
            elif token == SPLIT:
                canvas += [MASK, old[i]]
                first += [False, self.first[i]]
        self.canvas = (canvas + [MASK] * length)[:length]
        self.first = (first + [False] * length)[:length]


CANVASES = st.tuples(st.lists(st.integers(0, VOCAB - 1), max_size=3), st.integers(1, 6)).map(
    lambda parts: [*parts[0], *[MASK] * parts[1]]
)
OPTIONS = st.tuples(
    st.none() | st.integers(1, 12),
    st.sampled_from([0.2, 0.5, 0.9]),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.integers(0, 6),
    st.sampled_from([1, 5, 30]),
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 3.0, 6.0]),
    st.sampled_from([-9.0, 0.0, 2.0]),
    CANVASES,
    OPTIONS,
    st.sampled_from([6, VOCAB]),
)
@example(1, 0.0, 2.0, [DELETE, SPLIT, MASK, MASK, MASK], (None, 0.5, 0.0, 6, 30), VOCAB)
def test_it_is_the_reference(seed, stickiness, fondness, canvas, options, candidates):
    logits = model(seed, stickiness, fondness)
    steps, threshold, edit, max_post, max_steps = options
    sampler = blocks.build(
        "levenshtein",
        steps=steps,
        threshold=threshold,
        edit_threshold=edit,
        max_post_steps=max_post,
        max_steps=max_steps,
    )
    wanted = Reference(canvas, logits, steps or len(canvas), threshold, edit, max_post, max_steps)
    expected = wanted.run()
    event(f"escapes: {min(wanted.escapes, 2)}")
    found = blocks.rewrite(
        sampler, canvas, IDS, lambda ids: blocks.greedy(logits(ids.tolist()), candidates)
    )
    assert found == expected
    prompt = [token for token in canvas if token != MASK]
    assert all(state[: len(prompt)] == prompt for state in found)
    assert not {MASK, DELETE, SPLIT} & set(found[-1][len(prompt) :])
    assert len(found) - 1 <= max_steps


def test_random_blocks_run_in_circles_and_change_their_length():
    """Otherwise the test above would show little."""
    rng, circles, grown, at_the_limit = np.random.default_rng(0), 0, 0, 0
    for seed in range(60):
        run = Reference(
            [MASK] * 5, model(seed, float(rng.choice([3.0, 6.0])), 1.0), 5, 0.5, 0.0, 16, 20
        )
        masks = [state.count(MASK) for state in run.run()]
        circles += run.escapes > 0
        grown += any(after > before for before, after in pairwise(masks))
        at_the_limit += len(masks) > 20
    assert min(circles, grown, at_the_limit) > 3
    assert at_the_limit < 57


def scan(written, old, mask=None):
    changed = [a != b for a, b in zip(written, old, strict=True)] if mask is None else mask
    after, source, put_in = edited(np.array(written), np.array(old), np.array(changed), IDS)
    return after.tolist(), source[~put_in].tolist()


def test_deletions_and_insertions_by_hand():
    assert scan([0, DELETE, 2, 3], [0, 1, 2, 3]) == ([0, 2, 3, MASK], [0, 2, 3])
    assert scan([0, SPLIT, 2, 3], [0, 1, 2, 3]) == ([0, MASK, 1, 2], [0, 1, 2])
    assert scan([SPLIT, DELETE, 5], [0, 1, 2]) == ([MASK, 0, 5], [0, 2])
    assert scan([SPLIT, SPLIT], [0, 1]) == ([MASK, 0], [0])
    assert scan([DELETE, DELETE], [0, 1]) == ([MASK, MASK], [])
    assert scan([0, SPLIT], [0, MASK]) == ([0, MASK], [0])
    assert scan([DELETE, SPLIT], [DELETE, SPLIT]) == ([DELETE, SPLIT], [0, 1])  # text, not edits


def test_a_mask_behind_one_that_was_put_in_is_still_one_of_the_first():
    sampler = Levenshtein(SamplerConfig("levenshtein", threshold=0.9))
    block = BlockState(
        np.array([False, True, True]),
        0,
        2,
        np.array([0, MASK, MASK]),
        np.array([1, 0, 0], bool),
        IDS,
    )
    logits = np.eye(VOCAB)[[0, SPLIT, 1]] * [[9], [9], [1]]
    after = sampler.rewrite(blocks.greedy(logits), block)
    assert after.tokens.tolist() == [0, MASK, MASK]
    assert after.masked.tolist() == [False, True, True]
    # Of the two the first was put in: the schedule's one and one more.
    again = BlockState(after.masked, 1, 2, after.tokens, block.given, IDS)
    assert sampler.wanted(again) == 2


def test_masks_filled_at_a_limit_are_forced():
    block = blocks.state([1, 1], tokens=[MASK] * 2, edits=IDS)
    said = blocks.greedy(np.eye(VOCAB)[[DELETE, 1]] * 3.0)
    after = blocks.build("levenshtein", max_steps=1, threshold=0.9).rewrite(said, block)
    assert (after.final, after.forced) == (True, True)
    assert not set(after.tokens.tolist()) & {DELETE, SPLIT, MASK}
    after = blocks.build("levenshtein", max_post_steps=0, steps=1).rewrite(said, block)
    assert (after.final, after.forced) == (True, False)  # the schedule takes both


@pytest.mark.parametrize("kept", [3, 4])
def test_it_goes_on_where_there_are_no_further_candidates(kept):
    logits = model(3, 0.0, 0.0)
    sampler = blocks.build("levenshtein", max_post_steps=60, max_steps=60)
    found = blocks.rewrite(
        sampler, [MASK] * 2, IDS, lambda ids: blocks.greedy(logits(ids.tolist()), kept)
    )
    assert len(found) > 2


@pytest.mark.parametrize(("seen", "token"), [(0, 1), (1, 2), (4, 5), (5, 0), (6, 0)])
def test_five_other_candidates_are_tried(seen, token):
    """One position wavers between 0, 1, 2 and so on; where all were tried the last one stays."""
    order = [1, 2, 3, 4, 5, 0, DELETE, SPLIT]
    logits = np.zeros((1, VOCAB))
    logits[0, order] = -np.arange(VOCAB)
    sampler = Levenshtein(SamplerConfig("levenshtein", max_post_steps=99))
    sampler._seen = {np.array([number]).tobytes() for number in order[:seen]}
    block = blocks.state([1], tokens=[MASK], edits=IDS)
    assert sampler.rewrite(blocks.greedy(logits), block).tokens.tolist() == [token]
