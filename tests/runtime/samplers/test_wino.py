import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.samplers.base import BlockState, Candidates
from dlmc_runtime.samplers.wino import probability_of

VOCAB = 4


def reference(logits, shadows, threshold, back):
    """Return the canvas after each forward, -1 for a mask: WINO over the whole vocabulary."""
    length = logits.shape[1]
    states: list[list[int]] = []
    canvas, last = np.full(length, -1), 30
    for said, shadow in zip(logits, shadows, strict=True):
        if not (canvas == -1).any():
            return states
        open_ = np.flatnonzero(canvas == -1).tolist()
        p, q = blocks.softmax(said), blocks.softmax(shadow)
        most = min(max(int(len(open_) * 0.7), 5), 20)
        order = [i for _, i in sorted((-p[i].max(), i) for i in open_)]
        taken = [i for i in order if p[i].max() > threshold][:most] or order[:1]
        known = [i for i in range(length) if canvas[i] != -1]
        doubted = []
        if len(taken) > 1:
            doubted = [i for i in known if q[i, canvas[i]] < back]
            if len(doubted) >= last:
                worst = sorted((q[i, canvas[i]], i) for i in known)
                doubted = [i for _, i in worst[: last - 1]]
        canvas[taken] = p[taken].argmax(axis=1)
        canvas[doubted] = -1
        last = len(taken)
        states.append(canvas.tolist())
    raise AssertionError("a block ends within as many forwards as it has positions")


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([0.3, 0.6]))
def test_with_all_candidates_it_is_the_reference(seed, length, threshold):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(length + 1, length, VOCAB)) * 2
    shadows = random.normal(size=(length + 1, length, VOCAB)) * 3
    sampler = blocks.build("wino", threshold=threshold, revoke_threshold=0.5)
    canvas, open_, states = np.full(length, -1), np.ones(length, bool), []
    for step in range(length):
        said = blocks.greedy(logits[step])
        said = blocks.prediction(
            said.confidence, said.tokens.tolist(), shadow=blocks.candidates(shadows[step])
        )
        block = BlockState(open_.copy(), step, length, canvas.copy(), np.zeros(length, bool))
        chosen = sampler.select(said, block)
        reopened = sampler.reopen(said, block, chosen)
        canvas[chosen], canvas[reopened] = said.tokens[chosen], -1
        open_ = canvas == -1
        states.append(canvas.tolist())
        if not open_.any():
            break
    assert states == reference(logits, shadows, threshold, 0.5)


def doubting(confidence, masked, step, sampler, given_=None):
    """Return what is reopened where the shadow believes nothing that the block holds."""
    count = len(masked)
    shadow = blocks.candidates(np.tile([0.0, 9.0], (count, 1)))
    said = blocks.prediction(confidence, shadow=shadow)
    block = blocks.state(masked, step, given=given_)
    chosen = sampler.select(said, block)
    return np.flatnonzero(sampler.reopen(said, block, chosen)).tolist()


def test_fewer_are_revoked_than_the_step_before_committed():
    sampler = blocks.build("wino")
    assert doubting([0.9, 0.8, 0.7, 0.1, 0.1, 0.1], [1] * 6, 0, sampler) == []  # commits three
    sure = [0.9] * 5 + [0.1]
    assert doubting(sure, [0, 0, 0, 1, 1, 1], 1, sampler) == [0, 1]  # commits two
    assert doubting([0.1] * 6, [1, 1, 0, 0, 0, 1], 2, sampler) == []  # commits a single one
    assert doubting(sure, [0, 0, 1, 1, 1, 0], 3, sampler) == []  # fewer than one


def test_given_tokens_are_not_revoked():
    found = doubting([0.9] * 4, [0, 0, 1, 1], 1, blocks.build("wino"), given_=[1, 0, 0, 0])
    assert found == [1]


@pytest.mark.parametrize(
    ("masks", "most"), [(1, 1), (5, 5), (7, 5), (8, 5), (10, 7), (28, 19), (29, 20), (60, 20)]
)
def test_at_most_twenty_and_at_least_five_may_be_committed(masks, most):
    said = blocks.prediction(np.full(masks, 0.9))
    assert len(blocks.select(blocks.build("wino"), said, blocks.state([1] * masks))) == most


def test_a_token_that_is_no_candidate_is_improbable():
    kept = Candidates(np.array([[3, 1]]), np.log([[0.5, 0.25]]), np.zeros(1))
    assert probability_of(np.array([1]), kept) == pytest.approx([0.25])
    assert probability_of(np.array([0]), kept).tolist() == [0.0]
