import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.samplers.base import BlockState, Prediction
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.low_confidence import LowConfidence

UNIT = st.integers(0, 20).map(lambda x: x / 20)


def select(confidence, masked=None, step=0, masks=None, tokens=None, **parameters):
    confidence = np.array(confidence, float)
    masked = np.ones(len(confidence), bool) if masked is None else np.array(masked, bool)
    masks = int(masked.sum()) if masks is None else masks
    tokens = np.zeros(len(confidence), np.int64) if tokens is None else np.array(tokens)
    sampler = LowConfidence(SamplerConfig(**parameters))
    chosen = sampler.select(Prediction(tokens, confidence), BlockState(masked, step, masks))
    return np.flatnonzero(chosen).tolist()


def test_one_position_a_forward_by_default():
    assert select([0.2, 0.9, 0.5]) == [1]
    assert select([0.2, 0.9, 0.5], masked=[1, 0, 1], masks=3) == [2]


def test_the_schedule_spreads_the_masks_of_the_block():
    confidence = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert select(confidence, steps=2) == [2, 3, 4]  # 5 over 2 steps: 3, then 2
    assert select(confidence, masked=[1, 1, 0, 0, 0], masks=5, steps=2, step=1) == [0, 1]
    assert select(confidence, masked=[0, 1, 1, 1, 0], steps=2) == [2, 3]  # 3 masks: 2, then 1


def test_a_threshold_takes_all_that_reach_it_and_always_the_best():
    assert select([0.9, 0.89, 0.95], threshold=0.9) == [0, 2]
    assert select([0.3, 0.7, 0.7], threshold=0.9) == [1]
    assert select([0.9, 0.99, 0.1], masked=[1, 0, 1], threshold=0.9) == [0]


def test_a_factor_takes_a_prefix_of_the_ranking():
    # bounds of factor 1 in rank 2, 3, 4: 2/3, 3/4, 4/5
    assert select([0.1, 0.7, 0.9, 0.8], factor=1.0) == [2, 3]  # 0.7 fails 3/4
    assert select([0.85, 0.86, 0.87, 0.79], factor=1.0) == [0, 1, 2]  # the last fails 4/5
    assert select([0.85, 0.86, 0.87, 0.81], factor=1.0) == [0, 1, 2, 3]
    assert select([0.1, 0.2], factor=1.0) == [1]
    assert select([0.3], factor=1.0) == [0]


@given(
    st.lists(st.tuples(UNIT, st.booleans()), min_size=1, max_size=10).filter(
        lambda rows: any(masked for _, masked in rows)
    ),
    st.sampled_from([0.0, 0.5, 1.0, 1.7, 4.0]),
)
def test_the_factor_rule_is_the_loop_of_the_paper(rows, factor):
    order = [i for i, (_, masked) in enumerate(rows) if masked]
    order.sort(key=lambda i: -rows[i][0])
    expected = [order[0]]
    for rank, position in enumerate(order[1:], start=2):
        if rows[position][0] < 1 - factor / (rank + 1):
            break
        expected.append(position)
    confidence, masked = zip(*rows, strict=True)
    assert select(confidence, masked=masked, factor=factor) == sorted(expected)


def test_deferred_tokens_come_last():
    confidence, tokens = [0.9, 0.2, 0.8, 0.1], [7, 1, 8, 2]
    assert select(confidence, tokens=tokens, defer_ids=(7, 8), steps=2) == [1, 3]
    assert select(confidence, tokens=tokens, defer_ids=(7, 8), threshold=0.05) == [1, 3]
    assert select(confidence, tokens=tokens, defer_ids=(7, 8), factor=2.0) == [1]
    rest = [1, 0, 1, 0]
    assert select(confidence, masked=rest, masks=4, tokens=tokens, defer_ids=(7, 8)) == [0]


@given(st.lists(UNIT, min_size=1, max_size=8), st.data())
def test_a_deferred_token_never_precedes_another(confidence, data):
    size = len(confidence)
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    steps = data.draw(st.integers(1, len(confidence)))
    chosen = select(confidence, tokens=tokens, defer_ids=(2,), steps=steps)
    if any(tokens[i] == 2 for i in chosen):
        assert all(i in chosen for i, token in enumerate(tokens) if token != 2)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@given(st.integers(0, 10_000), st.sets(st.integers(0, 6), max_size=4))
def test_ids_that_do_not_count_are_left_out_of_the_distribution(temperature, seed, ids):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(5, 7)) * 2
    said = blocks.greedy(logits)
    tokens = random.integers(0, 7, 5) if temperature else said.tokens
    p = blocks.softmax(logits)[np.arange(5), tokens]
    said = Prediction(tokens, p, candidates=said.candidates)
    sampler = blocks.build("low_confidence", uncounted_ids=tuple(ids), temperature=temperature)
    counted = logits.copy()
    counted[:, sorted(ids)] = -np.inf
    expected = blocks.softmax(counted)[np.arange(5), tokens]
    found = sampler.adjust(said, blocks.state([1] * 5))
    np.testing.assert_allclose(found.confidence, expected, rtol=1e-9)
    assert found.tokens.tolist() == tokens.tolist()


def test_candidates_are_asked_for_only_where_ids_do_not_count():
    assert LowConfidence.asks_for(SamplerConfig()) == frozenset()
    assert LowConfidence.asks_for(SamplerConfig(uncounted_ids=(3,))) == {"candidates"}


def test_a_schedule_may_be_that_of_the_reverse_process():
    confidence = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert select(confidence, steps=2, schedule="linear") == [3, 4]
    rest = [1, 1, 1, 0, 0]
    assert select(confidence, rest, step=1, masks=5, steps=2, schedule="linear") == [0, 1, 2]
    # Past the end of what was not rounded away, all that is left.
    assert select(confidence, rest, step=4, masks=5, steps=8, schedule="cosine") != []


def test_more_steps_than_masks_leave_out_the_steps_that_commit_nothing():
    said = blocks.prediction([0.1, 0.2, 0.3])
    sampler = blocks.build("low_confidence", steps=8, schedule="dream")
    assert blocks.denoise(sampler, [1, 1, 1], lambda _: said) == [[2], [0, 1]]
    assert sampler.idle(blocks.state([1, 1], 0))
    assert not blocks.build("low_confidence", threshold=0.9).idle(blocks.state([1, 1], 0))
    assert not blocks.build("low_confidence", factor=1.0).idle(blocks.state([1, 1], 7))
