import blocks
import numpy as np
import pytest


def step(sampler, noise, block):
    """Return which positions are committed and which are reopened."""
    said = blocks.prediction(np.full(len(noise), 0.5), noise=noise)
    chosen = sampler.select(said, block)
    return chosen, sampler.reopen(said, block, chosen)


def chances(sampler, number, length=20_001):
    """Return how probable it is that a mask is committed, and that a token is reopened."""
    noise = np.linspace(0, 1, length, endpoint=False)
    chosen, _ = step(sampler, noise, blocks.state(np.ones(length), number))
    _, reopened = step(sampler, noise, blocks.state(np.zeros(length), number))
    return chosen.mean(), reopened.mean()


@pytest.mark.parametrize(("eta", "used"), [(None, 0.04), (0.1, 0.1), (1.0, 1.0)])
def test_the_chances_of_a_step(eta, used):
    steps = 8
    sampler = blocks.build("remdm", steps=steps, eta=eta)
    for number in range(steps):
        now, then = number / steps, (number + 1) / steps
        sigma = min(used, (1 - then) / now) if now else 0.0
        commit = (then - (1 - sigma) * now) / (1 - now)
        found = chances(sampler, number)
        assert found[0] == pytest.approx(commit, abs=1e-3)
        assert found[1] == pytest.approx(sigma, abs=1e-3)


def test_the_share_of_known_tokens_is_that_of_the_process():
    # Whatever is reopened, alpha(s) of the positions are known after the step to time s.
    steps, length = 6, 40_000
    random, sampler = np.random.default_rng(5), blocks.build("remdm", steps=steps, eta=0.3)
    open_, moved = np.ones(length, bool), 0
    for number in range(steps):
        chosen, reopened = step(sampler, random.random(length), blocks.state(open_, number))
        open_ = (open_ & ~chosen) | reopened
        moved += int(reopened.sum())
        assert 1 - open_.mean() == pytest.approx((number + 1) / steps, abs=0.012)
    assert not open_.any()
    assert moved > length / 4


def test_the_last_step_leaves_no_mask_and_reopens_nothing():
    sampler = blocks.build("remdm", steps=3, eta=1.0)
    for number in (2, 3, 9):
        chosen, reopened = step(sampler, np.array([0.0, 0.999]), blocks.state([0, 1], number))
        assert chosen.tolist() == [False, True]
        assert not reopened.any()


def test_one_step_a_position_by_default():
    sampler = blocks.build("remdm")
    assert step(sampler, np.array([0.2, 0.3, 0.3, 0.3]), blocks.state([1] * 4))[0].tolist() == [
        True,
        False,
        False,
        False,
    ]


def test_given_tokens_stay():
    block = blocks.state([0, 0, 1, 1], 1, given=[1, 0, 0, 0])
    sampler = blocks.build("remdm", eta=1.0)
    assert step(sampler, np.zeros(4), block)[1].tolist() == [False, True, False, False]
