import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import samplers
from dlmc_runtime.samplers.base import BlockState, Prediction, Sampler, best, quota
from dlmc_runtime.samplers.config import SamplerConfig


@st.composite
def situations(draw):
    """A block of a few positions, some masked, with confidences that often tie."""
    length = draw(st.integers(1, 9))
    masked = draw(st.lists(st.booleans(), min_size=length, max_size=length).filter(any))
    grades = st.integers(0, 4).map(lambda grade: grade / 4)
    confidence = draw(st.lists(grades, min_size=length, max_size=length))
    prediction = Prediction(
        tokens=np.array(draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))),
        confidence=np.array(confidence),
        noise=np.array(draw(st.lists(grades, min_size=length, max_size=length))),
    )
    masks = draw(st.integers(sum(masked), length))
    return prediction, BlockState(np.array(masked), draw(st.integers(0, 9)), masks)


CONFIGS = st.builds(
    SamplerConfig,
    name=st.sampled_from(sorted(samplers.SAMPLERS)),
    steps=st.none() | st.integers(1, 9),
    threshold=st.none() | st.sampled_from([0.25, 0.5, 0.9, 1.0]),
    defer_ids=st.sampled_from([(), (0,), (1, 2)]),
) | st.builds(
    SamplerConfig,
    name=st.sampled_from(["low_confidence", "random"]),
    factor=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
)


def _is_free(config):
    """Return whether no schedule bounds what a forward commits."""
    parallel = config.factor is not None or config.threshold is not None
    return parallel and config.name in ("low_confidence", "random")


def scheduled(config, block):
    """Return how many positions the schedule wants at this step."""
    length = len(block.masked)
    total = block.masks if config.name in ("low_confidence", "random") else length
    return quota(total, config.steps or length, block.step)


@given(CONFIGS, situations())
def test_a_choice_is_masked_and_comes_when_it_must(config, situation):
    prediction, block = situation
    chosen = samplers.build(config).select(prediction, block)
    assert chosen.dtype == bool
    assert not (chosen & ~block.masked).any()
    if _is_free(config) or scheduled(config, block) > 0:
        assert chosen.any()


@given(CONFIGS, situations())
def test_a_choice_leaves_what_it_was_given_alone(config, situation):
    prediction, block = situation
    before = [prediction.tokens.copy(), prediction.confidence.copy(), block.masked.copy()]
    samplers.build(config).select(prediction, block)
    after = [prediction.tokens, prediction.confidence, block.masked]
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(was, now)


@given(CONFIGS, st.integers(1, 9), st.data())
def test_every_block_is_full_after_its_steps(config, length, data):
    masked = data.draw(st.lists(st.booleans(), min_size=length, max_size=length).filter(any))
    masked, sampler, step = np.array(masked), samplers.build(config), 0
    masks = int(masked.sum())
    # Thresholds and factors ignore the schedule, but fix one position a forward at least.
    limit = masks if _is_free(config) else config.steps or length
    while masked.any():
        assert step < limit
        numbers = st.lists(st.integers(0, 8), min_size=length, max_size=length)
        prediction = Prediction(
            tokens=np.array(data.draw(numbers)),
            confidence=np.array(data.draw(numbers)) / 8,
            noise=np.array(data.draw(numbers)) / 8,
        )
        masked = masked & ~sampler.select(prediction, BlockState(masked, step, masks))
        step += 1


@given(st.integers(0, 50), st.integers(1, 60))
def test_quotas_sum_to_the_total_and_fall(total, steps):
    counts = [quota(total, steps, step) for step in range(steps)]
    assert sum(counts) == total
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1


def test_quota_by_hand():
    assert [quota(24, 7, step) for step in range(7)] == [4, 4, 4, 3, 3, 3, 3]
    assert [quota(2, 4, step) for step in range(4)] == [1, 1, 0, 0]
    assert quota(8, 2, 2) == 8  # past the schedule: whatever is left


def test_best_takes_the_lowest_position_at_ties():
    scores = np.array([0.5, 0.9, 0.5, 0.9, 0.5])
    everywhere = np.ones(5, bool)
    assert best(scores, everywhere, 1).tolist() == [False, True, False, False, False]
    assert best(scores, everywhere, 3).tolist() == [True, True, False, True, False]
    assert best(scores, np.array([0, 0, 1, 0, 1], bool), 1).nonzero()[0].tolist() == [2]


@given(situations(), st.integers(0, 12))
def test_best_is_a_stable_sort(situation, count):
    prediction, block = situation
    order = [int(i) for i in np.flatnonzero(block.masked)]
    order.sort(key=lambda i: -prediction.confidence[i])  # list.sort is stable
    expected = sorted(order[:count])
    assert np.flatnonzero(best(prediction.confidence, block.masked, count)).tolist() == expected


def test_the_base_class_chooses_nothing():
    block = BlockState(np.ones(1, bool), 0, 1)
    with pytest.raises(NotImplementedError):
        Sampler(SamplerConfig()).select(Prediction(np.zeros(1, np.int64), np.ones(1)), block)


def test_every_sampler_of_the_table_can_be_built():
    for name in samplers.SAMPLERS:
        sampler = samplers.build(SamplerConfig(name=name))
        assert isinstance(sampler, Sampler)
        assert type(sampler).__name__ == samplers.SAMPLERS[name][1]
