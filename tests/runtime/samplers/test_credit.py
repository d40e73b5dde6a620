import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

VOCAB = 6


def reference(logits, threshold):
    """Return what credit decoding commits in each forward, over the whole vocabulary.

    Of those within 1e-5 of the best it takes the first, where none reaches the threshold.
    """
    length = logits.shape[1]
    credit, open_, history = np.zeros((length, VOCAB)), np.ones(length, bool), []
    for said in logits:
        credit *= 0.8
        p = blocks.softmax(said)
        best = p.argmax(axis=1)
        credit[np.arange(length), best] += open_ * p.max(axis=1) ** 0.2
        fused = blocks.softmax(said + 0.7 * np.log(credit + 1))
        sure = np.where(open_, fused.max(axis=1), -np.inf)
        chosen = sure >= threshold
        chosen[sure.argmax()] = True
        tokens = fused.argmax(axis=1)
        history.append([(i, int(tokens[i])) for i in np.flatnonzero(chosen)])
        open_ &= ~chosen
        if not open_.any():
            return history
    raise AssertionError("one position a forward is committed at least")


@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([None, 0.5, 0.75]))
def test_with_all_candidates_it_is_the_reference(seed, length, threshold):
    random = np.random.default_rng(seed)
    steady = random.normal(size=(length, VOCAB))
    logits = steady + random.normal(size=(length, length, VOCAB)) * 0.7
    sampler = blocks.build("credit", threshold=threshold)
    open_, found = np.ones(length, bool), []
    for step, said in enumerate(logits):
        block = blocks.state(open_, step, masks=length)
        raised = sampler.adjust(blocks.greedy(said), block)
        chosen = np.flatnonzero(sampler.select(raised, block)).tolist()
        found.append([(i, int(raised.tokens[i])) for i in chosen])
        open_[chosen] = False
        if not open_.any():
            break
    assert found == reference(logits, threshold or 0.9)


def test_persistence_makes_a_token_sure():
    logits = np.log([[0.86, 0.14], [0.7, 0.3], [0.52, 0.48]])
    sampler = blocks.build("credit")
    # By hand: credit 0.86 ** 0.2 = 0.970 makes odds 6.14 * 1.970 ** 0.7 = 9.88, or 0.908.
    found = sampler.adjust(blocks.greedy(logits), blocks.state([1] * 3))
    assert found.confidence[0] == pytest.approx(0.908, abs=5e-4)
    assert blocks.select(blocks.build("credit"), blocks.greedy(logits), blocks.state([1] * 3)) == [
        0
    ]


def test_credit_can_change_the_token():
    sampler = blocks.build("credit")
    for step in range(3):
        sampler.adjust(blocks.greedy(np.log([[0.8, 0.2]])), blocks.state([1], step))
    found = sampler.adjust(blocks.greedy(np.log([[0.45, 0.55]])), blocks.state([1], 3))
    assert found.tokens.tolist() == [0]
    assert found.confidence[0] > 0.45


def test_credit_does_not_outlast_a_block():
    said, block = blocks.greedy(np.log([[0.6, 0.4]])), blocks.state([1])
    sampler = blocks.build("credit")
    first = sampler.adjust(said, block).confidence
    assert sampler.adjust(said, blocks.state([1], 1)).confidence > first
    sampler.begin()
    np.testing.assert_array_equal(sampler.adjust(said, block).confidence, first)


def test_a_token_that_is_no_candidate_keeps_its_credit_for_later():
    sampler = blocks.build("credit")
    first = np.log([[0.5, 0.3, 0.2]])
    gone = np.log([[0.1, 0.5, 0.4]])
    for step, logits in enumerate([first, gone]):
        sampler.adjust(blocks.greedy(logits, 2), blocks.state([1], step))
    found = sampler.adjust(blocks.greedy(first, 2), blocks.state([1], 2))
    credit = np.array([0.5**0.2 * (0.8**2 + 1), 0.5**0.2 * 0.8, 0.0])
    fused = blocks.softmax(first + 0.7 * np.log1p(credit))
    np.testing.assert_allclose(found.confidence, fused[:, 0])


def test_a_factor_bounds_the_raised_confidence():
    logits = np.log([[0.86, 0.14], [0.7, 0.3], [0.52, 0.48]])
    said, block = blocks.greedy(logits), blocks.state([1] * 3)
    # 0.908, 0.789 >= 2/3, and 0.636 < 3/4
    assert blocks.select(blocks.build("credit", factor=1.0), said, block) == [0, 1]
    assert not blocks.build("credit", steps=9).idle(blocks.state([1], 5))
