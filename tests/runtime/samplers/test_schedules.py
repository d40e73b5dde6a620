import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.samplers.schedules import dream, quota, reverse_process, rnd1

EPS = st.sampled_from([1e-5, 1e-3, 0.05, 0.5])


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


@given(st.integers(0, 200), st.integers(1, 80), st.sampled_from(["linear", "cosine"]))
def test_the_reverse_process_commits_every_mask_in_time(masks, steps, kind):
    counts = reverse_process(masks, steps, kind)
    assert sum(counts) == masks
    assert len(counts) <= steps
    assert all(count > 0 for count in counts)


def test_the_reverse_process_by_hand():
    # linear: of what is left, 1 / i with i steps to go; halves go to the even number
    assert reverse_process(8, 4, "linear") == (2, 2, 2, 2)
    assert reverse_process(5, 2, "linear") == (2, 3)
    assert reverse_process(2, 8, "linear") == (1, 1)  # six steps round to nothing
    # cosine: half of the time leaves cos(45 degrees) of the masks
    assert reverse_process(100, 2, "cosine") == (29, 71)
    assert reverse_process(1, 4, "cosine") == (1,)


@given(st.integers(1, 200), st.integers(1, 80), EPS)
def test_dream_commits_every_mask_in_time(masks, steps, eps):
    left = masks
    for step in range(steps):
        count = dream(left, steps, step, eps)
        assert 0 <= count <= left
        left -= count
    assert left == 0


@given(st.integers(1, 60), st.integers(2, 40), EPS, st.data())
def test_dream_is_the_floor_of_the_share_of_time_that_passes(masks, steps, eps, data):
    step = data.draw(st.integers(0, steps - 2))
    times = np.linspace(1, eps, steps + 1)
    exact = masks * (1 - times[step + 1] / times[step])
    assert dream(masks, steps, step, eps) in {int(exact - 1e-4), int(exact + 1e-4)}


def test_dream_keeps_to_the_recorded_quotas(goldens):
    cases = json.loads((goldens / "dream" / "samplers.json").read_text())["cases"]
    checked = 0
    for case in cases:
        options, recorded = case["parameters"], case["quota_per_forward"]
        if options["alg"] == "confidence_threshold" or None in recorded:
            continue
        left, steps, found = options["max_new_tokens"], options["steps"], []
        for step in range(steps):
            found.append(dream(left, steps, step, options["eps"]))
            left -= found[-1]
        assert found == recorded, case["name"]
        checked += 1
    assert checked == 10


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_dream_leaves_nothing_for_later(steps):
    assert dream(7, steps, steps - 1, 1e-3) == 7
    assert dream(7, steps, steps + 3, 1e-3) == 7


@given(st.integers(1, 400), st.integers(1, 400))
def test_rnd1_leaves_the_floor_of_a_share(masks, steps):
    left = masks
    for step in range(steps):
        left -= rnd1(masks, left, steps, step)
        exact = masks * (steps - 1 - step) / steps
        assert left in {int(exact - 1e-4), int(exact + 1e-4)}
    assert left == 0


@given(st.integers(1, 400), st.integers(2, 400), st.data())
def test_rnd1_rounds_as_torch_does(masks, steps, data):
    step = data.draw(st.integers(1, steps - 1))
    stay = (torch.tensor([[masks]]) * (step / steps)).long().clamp(min=0).item()
    assert rnd1(masks, masks, steps, steps - 1 - step) == masks - stay


def test_rnd1_by_hand():
    assert [rnd1(10, left, 4, step) for step, left in enumerate((10, 7, 5, 2))] == [3, 2, 3, 2]
    assert rnd1(4, 1, 8, 0) == 0  # fewer are left than it would leave
    assert rnd1(2, 2, 4, 0) == 1
    assert rnd1(7, 5, 3, 9) == 5  # past the schedule: whatever is left
