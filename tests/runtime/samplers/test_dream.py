import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import samplers
from dlmc_runtime.samplers.config import SamplerConfig

GRADES = st.integers(0, 10).map(lambda grade: grade / 10)
ORDERS = ("maskgit_plus", "topk_margin", "entropy")
PARTS = {"margin": [0.3, 0.6, 0.1, 0.2], "entropy": [0.2, 0.9, 0.3, 0.1]}
SAID = blocks.prediction([0.1, 0.2, 0.9, 0.4], **PARTS)


@pytest.mark.parametrize(
    ("name", "first"), list(zip(ORDERS, ([2, 3], [0, 1], [0, 3]), strict=True))
)
def test_each_order_ranks_by_its_own_score(name, first):
    sampler = blocks.build(name, steps=2, schedule="uniform")
    assert blocks.select(sampler, SAID, blocks.state([1] * 4)) == first


@pytest.mark.parametrize("name", ORDERS)
def test_a_threshold_and_a_factor_bound_confidence(name):
    block = blocks.state([1] * 4)
    assert blocks.select(blocks.build(name, threshold=0.4), SAID, block) == [2, 3]
    assert blocks.select(blocks.build(name, threshold=0.95), SAID, block) == [2]
    assert blocks.select(blocks.build(name, factor=1.8), SAID, block) == [2, 3]  # 0.2 < 1 - 1.8/4
    # Positions are not drawn where a bound says which ones to take.
    assert blocks.select(blocks.build(name, threshold=0.4, alg_temp=9.0), SAID, block) == [2, 3]
    assert blocks.select(blocks.build(name, factor=1.8, alg_temp=9.0), SAID, block) == [2, 3]


@pytest.mark.parametrize("name", ORDERS)
def test_deferred_tokens_come_last(name):
    said = blocks.prediction([0.1, 0.2, 0.9, 0.4], [5, 5, 7, 5], **PARTS)
    options = {"steps": 4, "schedule": "uniform", "defer_ids": (7,)}
    history = []
    open_ = np.ones(4, bool)
    sampler = blocks.build(name, **options)
    for step in range(4):
        history += blocks.select(sampler, said, blocks.state(open_, step, masks=4))
        open_[history] = False
    assert history[-1] == 2
    assert blocks.select(blocks.build(name, threshold=0.3, defer_ids=(7,)), said, sure()) == [3]


def sure():
    return blocks.state([1] * 4)


def test_the_schedule_is_dreams_own():
    quotas = [0, 1, 1, 1, 1, 1, 1, 2]  # recorded: 8 masks in 8 steps
    said = blocks.prediction(np.linspace(0.1, 0.8, 8))
    sampler = blocks.build("maskgit_plus", steps=8)
    history = blocks.denoise(sampler, [1] * 8, lambda _: said)
    assert [len(positions) for positions in history] == quotas[1:]  # without the idle first one
    assert history == [[7], [6], [5], [4], [3], [2], [0, 1]]


@given(st.lists(GRADES, min_size=3, max_size=6), st.integers(0, 100), st.sampled_from([1e-3, 9.0]))
def test_deferred_tokens_come_last_where_positions_are_drawn(confidence, seed, heat):
    noise = np.random.default_rng(seed).random(len(confidence))
    tokens = [7] + [5] * (len(confidence) - 1)
    said = blocks.prediction(confidence, tokens, noise=noise)
    block = blocks.state([1] * len(confidence), masks=len(confidence))
    sampler = blocks.build(
        "maskgit_plus",
        steps=len(confidence),
        schedule="uniform",
        alg_temp=heat,
        defer_ids=(7,),
    )
    assert blocks.select(sampler, said, block) != [0]


@pytest.mark.parametrize("count", [1, 2])
def test_positions_are_drawn_without_replacement_in_proportion(count):
    confidence, heat, draws = np.array([0.9, 0.2, 0.5, 0.3]), 0.4, 40_000
    masked = np.array([1, 1, 0, 1], bool)
    weight = np.where(masked, np.exp(confidence / heat), 0.0)
    expected: dict[tuple[int, ...], float] = {}
    share = weight / weight.sum()
    for first in np.flatnonzero(masked).tolist():
        if count == 1:
            expected[(first,)] = share[first]
            continue
        for second in np.flatnonzero(masked).tolist():
            if second != first:
                pair = tuple(sorted((first, second)))
                chance = share[first] * weight[second] / (weight.sum() - weight[first])
                expected[pair] = expected.get(pair, 0.0) + chance
    random, found = np.random.default_rng(7), dict.fromkeys(expected, 0)
    sampler = blocks.build("maskgit_plus", steps=2, schedule="uniform", alg_temp=heat)
    block = blocks.state(masked, masks=2 * count)
    for _ in range(draws):
        said = blocks.prediction(confidence, noise=random.random(4))
        found[tuple(blocks.select(sampler, said, block))] += 1
    for pair, chance in expected.items():
        assert found[pair] / draws == pytest.approx(chance, abs=0.012)


def test_the_smallest_noise_is_no_infinity():
    said = blocks.prediction([0.5, 0.6], noise=[0.0, 0.0])
    sampler = blocks.build("maskgit_plus", steps=2, schedule="uniform", alg_temp=1.0)
    assert blocks.select(sampler, said, blocks.state([1, 1])) == [1]


@pytest.mark.parametrize("name", [*ORDERS, "origin", "confidence_threshold"])
def test_confidence_is_tempered_and_the_nucleus_comes_first(name):
    kind = samplers.find(name)
    assert kind.tempered
    assert kind.nucleus_first
    plain = kind.asks_for(SamplerConfig(name=name))
    drawn = kind.asks_for(SamplerConfig(name=name, alg_temp=0.5))
    assert drawn - plain == ({"noise"} if name in ORDERS else set())
    assert kind.asks_for(SamplerConfig(name=name, alg_temp=0.0)) == plain


def test_origin_moves_each_position_as_the_reverse_process_says():
    steps, eps, length = 5, 1e-3, 50_000
    random = np.random.default_rng(3)
    times = np.linspace(1, eps, steps + 1)
    sampler = blocks.build("origin", steps=steps, eps=eps)
    for step in range(steps):
        said = blocks.prediction(np.full(length, 0.5), noise=random.random(length))
        block = blocks.state(np.ones(length), step)
        assert not sampler.idle(block)
        moved = len(blocks.select(sampler, said, block)) / length
        expected = 1 - times[step + 1] / times[step] if step < steps - 1 else 1
        assert moved == pytest.approx(expected, abs=0.01)


def test_a_threshold_with_a_quota_by_hand():
    # 8 masks in 4 steps: two a step are considered, and one more for each that was not sure.
    sampler = blocks.build("confidence_threshold", steps=4, threshold=0.9)
    sure = blocks.prediction([0.95, 0.5, 0.99, 0.91, 0.92, 0.1, 0.2, 0.3])
    history = blocks.denoise(sampler, [1] * 8, lambda _: sure)
    assert history[:2] == [[0, 2], [3, 4]]
    assert history[2:] == [[1], [7], [6], [5]]
    assert blocks.build("confidence_threshold").option("threshold") == 0.9


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_threshold_with_a_quota_is_the_loop_of_fast_dllm(share, steps, data):
    length = share * steps
    confidence = np.array(data.draw(st.lists(GRADES, min_size=length, max_size=length)))
    sampler = blocks.build("confidence_threshold", steps=steps, threshold=0.5)
    found = blocks.denoise(sampler, [1] * length, lambda _: blocks.prediction(confidence))
    open_, expected, carried, scheduled, step = list(range(length)), [], 0, steps, 0
    quota = share
    while open_:
        order = sorted(open_, key=lambda i: -confidence[i])[: quota + carried]
        chosen, carried = [order[0]], 0
        for position in order[1:]:
            if confidence[position] >= 0.5:
                chosen.append(position)
                continue
            carried += 1
            if step >= scheduled - 1:
                quota, scheduled = 0, scheduled + 1
        expected.append(sorted(chosen))
        open_ = [i for i in open_ if i not in chosen]
        step += 1
    assert found == expected


def test_what_was_left_does_not_outlast_a_block():
    sampler = blocks.build("confidence_threshold", steps=2, threshold=0.9)
    unsure = blocks.prediction([0.1, 0.2, 0.3, 0.4])
    block = blocks.state([1] * 4, 1)  # its first step was decided elsewhere
    assert blocks.select(sampler, unsure, block) == [3]
    sure = blocks.prediction([0.91, 0.92, 0.93, 0.94])
    assert blocks.select(sampler, sure, blocks.state([1, 1, 1, 0], 2, masks=4)) == [0, 1, 2]
    assert blocks.select(sampler, sure, block) == [2, 3]
