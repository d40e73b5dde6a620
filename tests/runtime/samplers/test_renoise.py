import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.samplers.renoise import Renoise, random_tokens

NATS = st.integers(0, 300).map(lambda hundredths: hundredths / 100)


def build(**options):
    sampler = blocks.build("renoise", **options)
    assert isinstance(sampler, Renoise)
    return sampler


def kept(entropy, **options):
    said = blocks.prediction(np.full(len(entropy), 0.5), entropy=entropy)
    return blocks.select(build(**options), said, blocks.state(np.ones(len(entropy))))


def settled(sampler, tokens, mean):
    return sampler.settled(np.array(tokens), np.full(len(tokens), mean))


def test_draws_are_kept_while_the_entropies_below_them_are_within_the_bound():
    assert kept([0.05, 0.01, 0.3, 0.04, 2.0]) == [0, 1, 2, 3]  # 0.1 before 0.3, 0.4 before 2.0
    assert kept([0.05, 0.01, 0.3, 0.04], entropy_bound=0.06) == [0, 1, 3]
    assert kept([2.0, 1.0], entropy_bound=0.0) == [1]
    assert kept([0.5, 0.5], entropy_bound=0.1) == [0]  # the first of equals


@given(st.lists(NATS, min_size=1, max_size=12), st.sampled_from([0.005, 0.105, 1.505]))
def test_the_reference_in_its_own_words(entropy, bound):
    ordered = np.sort(entropy)
    count = int((np.cumsum(ordered) - ordered <= bound).sum())
    order = np.argsort(entropy, kind="stable")
    assert kept(entropy, entropy_bound=bound) == sorted(order[:count].tolist())


def test_temperatures_fall_from_the_hottest_and_end_above_the_coldest():
    sampler = build(steps=4, t_min=0.0, t_max=0.8)
    assert [sampler.temperature(step) for step in range(4)] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    released = build()
    assert released.steps == 48
    assert released.temperature(0) == np.float32(0.8)
    assert released.temperature(47) == pytest.approx(0.4 + 0.4 / 48)
    assert build(steps=1).temperature(0) == np.float32(0.8)


def test_temperatures_are_those_of_float32():
    for step in range(48):
        left = np.float32(48 - step) / np.float32(48)
        expected = np.float32(0.4) + np.float32(0.8 - 0.4) * left
        assert build().temperature(step) == expected


def test_a_canvas_is_done_when_nothing_changes_and_it_is_sure():
    sampler = build()
    assert not settled(sampler, [1, 2], 0.001)  # there is no step before
    assert settled(sampler, [1, 2], 0.0049)
    assert not settled(sampler, [1, 2], 0.005)  # not below
    assert not settled(sampler, [1, 3], 0.001)
    assert settled(sampler, [1, 3], 0.001)
    sampler.begin()
    assert not settled(sampler, [1, 3], 0.001)


def test_as_many_steps_must_agree_as_asked_for():
    sampler = build(stability_threshold=2)
    found = [settled(sampler, [token], 0.0) for token in (1, 1, 1, 2, 1, 1, 1, 1)]
    assert found == [False, False, True, False, False, False, True, True]
    alone = build(stability_threshold=0, confidence_threshold=0.4)
    assert [settled(alone, [1], 0.5), settled(alone, [2], 0.3)] == [False, True]


def test_at_a_threshold_of_nothing_a_canvas_takes_all_its_steps():
    sampler = build(stability_threshold=0, confidence_threshold=0.0)
    assert not settled(sampler, [1], 0.0)
    assert not settled(sampler, [1], -1e-7)  # rounding


def test_the_history_does_not_change_with_the_array_it_was_told():
    sampler, tokens = build(), np.array([1, 2])
    sampler.settled(tokens, np.zeros(2))
    tokens[0] = 9
    assert not sampler.settled(tokens, np.zeros(2))


@pytest.mark.parametrize("size", [1, 2, 129, 160, 262_144])
def test_every_token_is_as_probable(size):
    largest = np.nextafter(1.0, 0.0)
    ends = np.array([0.0, largest])
    assert random_tokens(ends, size).tolist() == [0, size - 1]
    middles = (np.arange(min(size, 1000)) + 0.5) / size
    assert random_tokens(middles, size).tolist() == list(range(min(size, 1000)))


def test_what_it_needs_is_named():
    with pytest.raises(ValueError, match="entropies"):
        blocks.select(build(), blocks.prediction([0.5]), blocks.state([1]))
    assert Renoise.asks_for(build().config) == {"entropy", "noise"}
    assert Renoise.tempered
