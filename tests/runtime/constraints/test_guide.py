from dataclasses import replace

import numpy as np
import pytest

from dlmc_runtime.constraints.guide import Guide
from dlmc_runtime.samplers.base import Choices, Prediction


def prediction(ids):
    count = len(ids)
    chances = np.tile([0.6, 0.3], (count, 1))
    choices = Choices(
        np.array(ids), np.log(chances), chances, np.full(count, -5.0), np.full(count, 0.01)
    )
    half = np.full(count, 0.5)
    return Prediction(
        choices.ids[:, 0], chances[:, 0], margin=half, entropy=half.copy(), choices=choices
    )


@pytest.fixture
def guide(small):
    return Guide(small("(ab)*"), 2, 7)


def test_what_the_constraint_allows_replaces_what_it_does_not(guide):
    canvas, masked = np.full(8, 9), np.arange(8) >= 2
    found = guide.choose(prediction([[2, 0], [1, 0], [3, 0]]), canvas, masked, 2)
    assert found.tokens.tolist() == [0, 1, 3]  # a b ab
    assert (found.confidence > 0.3).all()


def test_positions_outside_the_text_and_decided_ones_keep_what_they_have(guide):
    canvas, masked = np.full(8, 9), np.arange(8) >= 2
    canvas[3], masked[3] = 1, False
    asked = prediction([[7, 6], [7, 6], [2, 6], [7, 6]])
    found = guide.choose(asked, canvas, masked, 0)
    assert found.tokens.tolist() == [7, 7, 0, 7]
    for name in ("confidence", "margin", "entropy"):
        assert (getattr(found, name)[[0, 1, 3]] == getattr(asked, name)[[0, 1, 3]]).all()
    whole = guide.choose(prediction([[0, 6]] * 6), canvas, masked, 2)
    assert whole.tokens[5] == 0  # behind the end of the text


def test_a_window_without_masks_is_not_asked_about(guide):
    asked = replace(prediction([[7, 6]]), choices=None)
    assert guide.choose(asked, np.full(8, 9), np.zeros(8, np.bool_), 3) is asked


def test_parts_that_a_sampler_does_not_need_stay_away(guide):
    asked = replace(prediction([[0, 6]]), margin=None, entropy=None)
    found = guide.choose(asked, np.full(8, 9), np.arange(8) >= 2, 2)
    assert found.margin is found.entropy is None


@pytest.mark.parametrize(("before", "ids", "found"), [(0, [0, 1], 1), (3, [1, 0], 0)])
def test_the_text_before_a_window_counts(guide, before, ids, found):
    canvas, masked = np.array([9, 9, before, 9, 9, 9, 9]), np.arange(7) > 2
    assert guide.choose(prediction([ids]), canvas, masked, 3).tokens.tolist() == [found]


def test_an_earlier_window_may_be_asked_about_again(guide):
    canvas = np.array([9, 9, 0, 1, 0, 9, 9])
    assert guide.choose(prediction([[0, 1]]), canvas, np.arange(7) > 4, 5).tokens.tolist() == [1]
    assert guide.choose(prediction([[0, 1]]), canvas, np.arange(7) > 2, 3).tokens.tolist() == [1]


def test_a_gap_before_a_window_is_an_error(guide):
    with pytest.raises(ValueError, match="not decided"):
        guide.choose(prediction([[0, 1]]), np.full(8, 9), np.arange(8) >= 2, 4)
