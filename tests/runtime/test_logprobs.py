import numpy as np
import pytest

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.events import UNLIKELY, TokenLogprob
from dlmc_runtime.logprobs import told


@pytest.fixture
def said():
    """What a head says of two positions: three candidates each, and a token that was drawn."""
    sums = np.array([8.0, 4.0])
    logits = np.log(np.array([[0.5, 0.3, 0.1], [0.9, 0.06, 0.01]]) * sums[:, None])
    ids = np.array([[4, 5, 6], [7, 8, 9]])
    zeros = np.zeros(2, np.float32)
    drawn = np.log(np.array([0.02, 0.005]) * sums)
    return Outputs(
        ids,
        logits.astype(np.float32),
        np.log(sums).astype(np.float32),
        zeros,
        zeros,
        zeros,
        np.array([20, 21]),
        drawn.astype(np.float32),
    )


def test_a_candidate_is_as_probable_as_the_model_says(said):
    found = told(said, 0, 5, 3, 2)
    assert (found.token, found.forward) == (5, 3)
    assert found.logprob == pytest.approx(np.log(0.3), rel=1e-6)
    assert [token for token, _ in found.top] == [4, 5]
    np.testing.assert_allclose([p for _, p in found.top], np.log([0.5, 0.3]), rtol=1e-6)


def test_a_token_that_was_drawn_is_known_outside_the_candidates(said):
    found = told(said, 0, 20, 1, 0)
    assert found.logprob == pytest.approx(np.log(0.02), rel=1e-6)
    assert found.top == ()
    assert told(said, 1, 21, 1, 3).logprob == pytest.approx(np.log(0.005), rel=1e-6)
    assert told(said, 1, 8, 1, 3).logprob == pytest.approx(np.log(0.06), rel=1e-6)


def test_what_the_head_does_not_tell_is_unlikely(said):
    assert told(said, 1, 20, 1, 0) == TokenLogprob(20, UNLIKELY, 1, ())


def test_no_token_is_more_than_certain():
    one, zero = np.full((1, 1), 2.0000002, np.float32), np.zeros(1, np.float32)
    said = Outputs(
        np.array([[3]]), one, np.full(1, 2, np.float32), zero, zero, zero, np.array([3]), one[0]
    )
    assert one[0, 0] > 2
    assert told(said, 0, 3, 1, 0).logprob == 0.0
