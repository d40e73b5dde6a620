import blocks
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlmc_runtime import samplers
from dlmc_runtime.samplers.base import EditIds

VOCAB = 6
IDS = EditIds(mask=VOCAB, delete=-2, split=-3)
SHARES = st.sampled_from([0.2, 0.5, 0.9])


def model(seed, stickiness):
    """Return logits [n,VOCAB] of any block, which prefer the tokens it holds."""

    def logits(canvas):
        found = np.random.default_rng([seed, *canvas]).normal(size=(len(canvas), VOCAB)) * 2
        for i, token in enumerate(canvas):
            if token < VOCAB:
                found[i, token] += stickiness
        return found

    return logits


def reference(canvas, logits, threshold, edit, most, least):
    """Return the block after each forward, as LLaDA2.1 denoises it, in plain Python."""
    prompt = [token != VOCAB for token in canvas]
    history, post = [list(canvas)], 0
    while True:
        masks = [i for i, token in enumerate(canvas) if token == VOCAB]
        if not masks:
            post += 1
            if post > most:
                return history
        p = blocks.softmax(logits(canvas)).tolist()
        best = [row.index(max(row)) for row in p]
        sure = [row[token] for row, token in zip(p, best, strict=True)]
        fill = [i for i in masks if sure[i] > threshold]
        if len(fill) < least:
            fill = sorted(masks, key=lambda i: (-sure[i], i))[:least]
        known = [i for i in range(len(canvas)) if i not in masks and not prompt[i]]
        change = [i for i in known if sure[i] > edit and best[i] != canvas[i]]
        canvas = [best[i] if i in fill + change else token for i, token in enumerate(canvas)]
        history.append(canvas)
        if not masks and not change:
            return history


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 3.0, 6.0]),
    st.tuples(st.lists(st.integers(0, VOCAB), max_size=4), st.integers(1, 6)).map(
        lambda parts: [*parts[0], *[VOCAB] * parts[1]]
    ),
    SHARES,
    st.sampled_from([0.0, 0.4, 0.9]),
    st.integers(0, 4),
    st.integers(1, 3),
)
@example(0, 0.0, [VOCAB] * 8, 0.5, 0.0, 4, 1)  # changes its mind to the end
@example(0, 0.0, [VOCAB] * 8, 0.9, 0.0, 0, 1)  # is final as soon as it is full
@example(0, 6.0, [1, VOCAB, VOCAB], 0.5, 0.4, 4, 1)
def test_it_is_the_reference(seed, stickiness, canvas, threshold, edit, most, least):
    logits = model(seed, stickiness)
    sampler = blocks.build(
        "token_editing",
        threshold=threshold,
        edit_threshold=edit,
        max_post_steps=most,
        least=least,
    )
    found = blocks.rewrite(sampler, canvas, IDS, lambda ids: blocks.greedy(logits(ids.tolist())))
    assert found == reference(canvas, logits, threshold, edit, most, least)


def one(confidence, tokens, block, **options):
    sampler = blocks.build("token_editing", **options)
    return sampler.rewrite(blocks.prediction(confidence, tokens), block)


def test_masks_are_filled_and_tokens_replaced_in_one_step():
    block = blocks.state([0, 1, 1, 0], tokens=[1, 9, 9, 2])
    after = one([0.95, 0.99, 0.6, 0.8], [4, 5, 6, 7], block)
    assert after.tokens.tolist() == [4, 5, 9, 2]  # 0.8 is not above 0.9, 0.6 not above 0.95
    assert after.masked.tolist() == [False, False, True, False]
    assert (after.final, after.forced) == (False, False)


def test_a_threshold_must_be_exceeded():
    block = blocks.state([1, 1, 0], tokens=[9, 9, 2])
    after = one([0.5, 0.75, 0.25], [4, 5, 6], block, threshold=0.5, edit_threshold=0.25)
    assert after.tokens.tolist() == [9, 5, 2]


def test_with_a_threshold_of_zero_every_other_best_token_is_taken():
    block = blocks.state([0, 0], tokens=[1, 2], given=[0, 0])
    after = one([0.01, 0.01], [1, 3], block, edit_threshold=0.0)
    assert after.tokens.tolist() == [1, 3]


def test_what_was_given_stays():
    block = blocks.state([0, 0], tokens=[1, 2], given=[1, 0])
    assert one([1, 1], [3, 4], block).tokens.tolist() == [1, 4]


@pytest.mark.parametrize(("most", "forwards"), [(0, 1), (1, 2), (3, 4)])
def test_forwards_without_masks_are_counted(most, forwards):
    # It predicts another token each time.
    def restless(ids):
        return blocks.prediction([0.99] * len(ids), (ids + 1) % VOCAB)

    sampler = blocks.build("token_editing", max_post_steps=most)
    assert len(blocks.rewrite(sampler, [VOCAB, VOCAB], IDS, restless)) - 1 == forwards
    sampler.begin()
    assert len(blocks.rewrite(sampler, [VOCAB, VOCAB], IDS, restless)) - 1 == forwards


def test_a_block_that_is_content_is_final():
    sampler = blocks.build("token_editing")
    found = blocks.rewrite(sampler, [VOCAB], IDS, lambda _: blocks.prediction([0.99], [3]))
    assert found == [[VOCAB], [3], [3]]


def test_confidence_is_taken_after_temperature():
    assert samplers.find("token_editing").tempered
