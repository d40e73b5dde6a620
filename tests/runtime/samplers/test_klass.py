import blocks
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.samplers.klass import divergence

VOCAB = 6


def drifting(seed, length, steps, scale):
    """Return logits [steps,length,V] that move less and less."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(length, VOCAB)) * 4
    moves = random.normal(size=(steps, length, VOCAB)) * scale
    return logits + np.cumsum(moves / (1 + np.arange(steps))[:, None, None] ** 3, axis=0)


def reference(logits, masks, steps, threshold, limit):
    """Return what KLASS commits in each forward of a first block, over the whole vocabulary."""
    length = logits.shape[1]
    open_, before = np.ones(length, bool), np.zeros((length, VOCAB))
    past, history = np.zeros((length, 2)), []
    for step in range(steps):
        if not open_.any():
            break
        p = blocks.softmax(logits[step])
        moved = (p * (np.log(p + 1e-12) - np.log(before + 1e-12))).sum(axis=1)
        past, before = np.stack([past[:, 1], moved], axis=1), p
        sure = p.max(axis=1)
        ready = (past < limit).all(axis=1) & (sure > threshold) & open_ if step else open_ & False
        if not ready.any():
            quota = masks // steps + (step < masks % steps)
            order = np.argsort(np.where(open_, -sure, np.inf), kind="stable")
            ready = np.isin(np.arange(length), order[:quota])
        history.append(np.flatnonzero(ready).tolist())
        open_ &= ~ready
    return history


@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([0.02, 0.3, 1.0]))
def test_with_all_candidates_it_is_the_reference(seed, length, scale):
    logits = drifting(seed, length, length, scale)
    sampler = blocks.build("klass", threshold=0.6)
    found = blocks.denoise(sampler, [1] * length, lambda forward: blocks.greedy(logits[forward]))
    assert found == reference(logits, length, length, 0.6, 0.01)


def test_what_is_sure_and_calm_for_two_steps_is_committed():
    calm = np.array([[9.0, 0.0]] * 5)
    found = blocks.denoise(blocks.build("klass"), [1] * 5, lambda _: blocks.greedy(calm))
    assert found == [[0], [1], [2, 3, 4]]
    moving = [calm, calm, calm * 0.6, calm, calm * 0.6]
    found = blocks.denoise(blocks.build("klass"), [1] * 5, lambda i: blocks.greedy(moving[i]))
    assert found == [[0], [1], [2], [3], [4]]
    unsure = np.array([[0.4, 0.0], [0.3, 0.0], [0.2, 0.0], [0.1, 0.0]])
    found = blocks.denoise(blocks.build("klass"), [1] * 4, lambda _: blocks.greedy(unsure))
    assert found == [[0], [1], [2], [3]]


def test_a_block_begins_without_a_history():
    said, sampler = blocks.greedy(np.array([[9.0, 0.0]] * 4)), blocks.build("klass")
    for step in range(2):
        blocks.select(sampler, said, blocks.state([1] * 4, step))
    sampler.begin()
    assert blocks.select(sampler, said, blocks.state([1] * 4, 1)) == [0]
    assert blocks.select(sampler, said, blocks.state([1] * 4, 2)) == [0]
    assert blocks.select(sampler, said, blocks.state([1] * 4, 3)) == [0, 1, 2, 3]


def test_a_deferred_token_is_not_ready_before_the_others():
    logits = np.array([[0.1, 9.0], [0.2, 0.0], [0.3, 0.0], [0.1, 0.0], [0.1, 0.0]])
    sampler = blocks.build("klass", defer_ids=(1,))
    history = blocks.denoise(sampler, [1] * 5, lambda _: blocks.greedy(logits))
    assert history[-1] == [0]


def test_it_commits_one_where_the_schedule_says_none():
    said = blocks.greedy(np.array([[0.1, 0.0], [0.2, 0.0]]))
    assert blocks.select(blocks.build("klass", steps=9), said, blocks.state([1, 1], 4)) == [1]


@given(st.integers(0, 10_000), st.integers(1, VOCAB))
def test_the_divergence_of_candidates_is_a_lower_bound(seed, count):
    random = np.random.default_rng(seed)
    now, before = random.normal(size=(2, 5, VOCAB)) * 3
    p, q = blocks.softmax(now), blocks.softmax(before)
    exact = (p * np.log(p / q)).sum(axis=1)
    found = divergence(blocks.candidates(now, count), blocks.candidates(before, count))
    assert (found <= exact + 1e-9).all()
    if count == VOCAB:
        np.testing.assert_allclose(found, exact, atol=1e-9)
    same = divergence(blocks.candidates(now, count), blocks.candidates(now, count))
    np.testing.assert_allclose(same, 0, atol=1e-9)


def test_the_divergence_without_a_common_candidate():
    now = blocks.candidates(np.log([[0.6, 0.3, 0.1]]), 1)
    before = blocks.candidates(np.log([[0.2, 0.7, 0.1]]), 1)
    assert divergence(now, before).tolist() == [0.0]  # all tokens together are all there is
    two = blocks.candidates(np.log([[0.3, 0.6, 0.1]]), 1)
    expected = 0.6 * np.log(0.6 / 0.7) + 0.4 * np.log(0.4 / 0.3)
    np.testing.assert_allclose(divergence(two, before), expected)
