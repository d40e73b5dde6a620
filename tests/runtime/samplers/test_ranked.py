from typing import Any

import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.samplers.ranked import factor_bounds


def test_the_first_rank_is_bound_by_nothing():
    np.testing.assert_allclose(factor_bounds(4, 1.5)[1:], [0.5, 0.625, 0.7])
    assert factor_bounds(4, 1.5)[0] == -np.inf
    assert len(factor_bounds(0, 1.0)) == 0


def test_a_factor_commits_the_longest_prefix():
    # 0.9 is bound by nothing and 0.74 by 2/3, but 0.7 by 3/4: it fails.
    said = blocks.prediction([0.7, 0.9, 0.74, 0.99])
    sampler = blocks.build("low_confidence", factor=1.0)
    assert blocks.select(sampler, said, blocks.state([1, 1, 1, 0])) == [1, 2]
    assert blocks.select(sampler, blocks.prediction([0.7, 0.9]), blocks.state([1, 1])) == [0, 1]


def test_the_last_rank_must_pass_as_well():
    """Fast-dLLM commits the last rank even where it fails alone."""
    said = blocks.prediction([0.9, 0.6])
    sampler = blocks.build("low_confidence", factor=1.0)
    assert blocks.select(sampler, said, blocks.state([1, 1])) == [0]


@pytest.mark.parametrize(
    ("schedule", "expected"), [("uniform", 2), ("linear", 2), ("dream", 1), (None, 2)]
)
def test_a_schedule_can_be_chosen(schedule, expected):
    sampler: Any = blocks.build("low_confidence", steps=3, schedule=schedule)
    assert sampler.count(blocks.state([1] * 5)) == expected


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(["uniform", "linear", "dream"]))
def test_a_block_is_full_after_its_steps(length, steps, schedule):
    sampler = blocks.build("low_confidence", steps=steps, schedule=schedule)
    masked, step = np.ones(length, bool), 0
    while masked.any() and step < steps:
        state = blocks.state(masked, step, masks=length)
        chosen = sampler.select(blocks.prediction(np.linspace(0.9, 0.1, length)), state)
        assert not (chosen & ~masked).any()
        assert sampler.idle(state) == (not chosen.any())
        masked &= ~chosen
        step += 1
    assert not masked.any()
