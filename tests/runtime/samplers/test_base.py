"""What holds of every sampler, and the pieces they share."""

from dataclasses import fields, replace
from typing import Any

import blocks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlmc_runtime import samplers
from dlmc_runtime.samplers.base import (
    BlockState,
    EditIds,
    Prediction,
    Sampler,
    best,
    marked,
    ranked,
)
from dlmc_runtime.samplers.config import SamplerConfig

VOCAB = 4
GRADES = st.integers(0, 4).map(lambda grade: grade / 4)
# By chance, by a causal pass, or by a schedule of positions: they may commit nothing in a step.
MAY_PAUSE = {"remdm", "origin", "autoregressive", "dus", "levenshtein"}
# One commits nothing by denoising, the other a canvas as a whole.
DENOISING = sorted(set(samplers.SAMPLERS) - {"autoregressive", "renoise"})
REWRITING = [name for name in DENOISING if samplers.find(name).rewrites]
VALUES = {
    "steps": st.integers(1, 9),
    "threshold": st.sampled_from([0.25, 0.5, 0.9, 1.0]),
    "factor": st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    "schedule": st.sampled_from(["uniform", "linear", "cosine", "dream", "rnd1"]),
    "eps": st.sampled_from([1e-3, 0.2]),
    "alg_temp": st.sampled_from([0.0, 0.1, 5.0]),
    "defer_ids": st.sampled_from([(0,), (1, 2)]),
    "uncounted_ids": st.sampled_from([(0,), (1, 3)]),
    "most": st.integers(1, 4),
    "gamma": st.sampled_from([0.0, 0.4, 3.0]),
    "kl_threshold": st.sampled_from([0.0, 0.01, 1.0]),
    "low_threshold": st.sampled_from([0.25, 0.7]),
    "min_threshold": st.sampled_from([0.25, 0.7]),
    "revoke_threshold": st.sampled_from([0.3, 0.9]),
    "eta": st.sampled_from([0.04, 0.5, 1.0]),
    "entropy_bound": st.sampled_from([0.0, 0.1, 3.0]),
    "t_min": st.sampled_from([0.0, 0.4]),
    "t_max": st.sampled_from([0.5, 2.0]),
    "stability_threshold": st.integers(0, 2),
    "confidence_threshold": st.sampled_from([0.0, 0.005, 1.0]),
    "order": st.sampled_from(["entropy", "confidence"]),
    "edit_threshold": st.sampled_from([0.0, 0.4, 1.0]),
    "max_post_steps": st.integers(0, 3),
    "max_steps": st.integers(1, 20),
    "least": st.integers(1, 4),
}
BOTH = ("confidence_threshold_ref", "confidence_threshold_bound")


def allowed(name, options):
    """Return the options without a factor that excludes a threshold."""
    clash = options.keys() >= {"threshold", "factor"} and name not in BOTH
    return {k: v for k, v in options.items() if not (clash and k == "factor")}


@st.composite
def configs(draw, names=DENOISING):
    name = draw(st.sampled_from(list(names)))
    heeded = sorted(samplers.find(name).heeds)
    options = draw(st.fixed_dictionaries({}, optional={key: VALUES[key] for key in heeded}))
    return SamplerConfig(name=name, **allowed(name, options))


@st.composite
def predictions(draw, length):
    """What a head might say, often with ties; every part that any sampler asks for."""
    logits = np.array(
        draw(
            st.lists(
                st.lists(st.integers(0, 5), min_size=VOCAB, max_size=VOCAB),
                min_size=length,
                max_size=length,
            )
        ),
        np.float64,
    )
    said = blocks.greedy(logits)
    p = blocks.softmax(logits)
    two = -np.sort(-p, axis=1)[:, :2]
    noise = draw(st.lists(GRADES.map(lambda g: g * 0.99), min_size=length, max_size=length))
    shadow = np.roll(logits, draw(st.integers(0, 2)), axis=0)
    return replace(
        said,
        margin=two[:, 0] - two[:, 1],
        entropy=-(p * np.log(p)).sum(axis=1),
        noise=np.array(noise),
        shadow=blocks.candidates(shadow),
    )


@st.composite
def situations(draw):
    length = draw(st.integers(1, 9))
    masked = np.array(draw(st.lists(st.booleans(), min_size=length, max_size=length).filter(any)))
    known = np.flatnonzero(~masked)
    was_given = draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    given_ = np.zeros(length, bool)
    given_[known] = was_given
    tokens = np.array(draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)))
    masks = length - int(given_.sum())
    return draw(predictions(length)), BlockState(
        masked, draw(st.integers(0, 9)), masks, tokens, given_, EditIds(mask=9, delete=2, split=3)
    )


def step(sampler, said, block):
    """Return what a sampler does in one step: the positions it commits and those it reopens."""
    said = sampler.adjust(said, block)
    chosen = sampler.select(said, block)
    return chosen, sampler.reopen(said, block, chosen)


def outcome(sampler, said, block):
    """Return all that a sampler does in one step."""
    found = step(sampler, said, block)
    if not sampler.rewrites:
        return found
    after = sampler.rewrite(said, block)
    return (*found, after.tokens, after.masked, after.final)


@given(configs(samplers.SAMPLERS), situations())
def test_a_choice_is_masked_and_comes_when_it_must(config, situation):
    said, block = situation
    sampler = samplers.build(config)
    idle = sampler.idle(block)
    chosen, _ = step(sampler, said, block)
    assert chosen.dtype == bool
    assert chosen.shape == block.masked.shape
    assert not (chosen & ~block.masked).any()
    if idle:
        assert not chosen.any()
    elif config.name not in MAY_PAUSE and not exhausted(sampler, block):
        assert chosen.any()


def exhausted(sampler, block):
    """Return whether SDAR's schedule, which counts the block's positions, wants none."""
    count = getattr(sampler, "count", None)
    return count is not None and count(block) == 0


@given(configs(["wino", "remdm"]), situations())
def test_what_was_given_or_just_committed_is_not_reopened(config, situation):
    said, block = situation
    chosen, reopened = step(samplers.build(config), said, block)
    assert not (reopened & (block.given | chosen | block.masked)).any()


@given(configs([n for n in DENOISING if not samplers.find(n).revises]), situations())
def test_only_samplers_that_say_so_reopen_positions(config, situation):
    assert not step(samplers.build(config), *situation)[1].any()


@given(configs(samplers.SAMPLERS), situations())
def test_a_choice_leaves_what_it_was_given_alone(config, situation):
    said, block = situation
    before = [part.copy() for part in (said.tokens, said.confidence, said.noise, block.masked)]
    before += [block.tokens.copy(), said.candidates.logits.copy()]
    outcome(samplers.build(config), said, block)
    after = [said.tokens, said.confidence, said.noise, block.masked, block.tokens]
    after += [said.candidates.logits]
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(was, now)


@given(configs([n for n in DENOISING if n not in REWRITING]), st.integers(1, 9), st.data())
def test_a_block_ends(config, length, data):
    masked = data.draw(st.lists(st.booleans(), min_size=length, max_size=length).filter(any))
    sampler = samplers.build(config)
    history = blocks.denoise(sampler, masked, lambda _: data.draw(predictions(length)))
    limited = config.steps is not None and sampler.limited
    assert len(history) <= (config.steps if limited else length)
    committed = {position for positions in history for position in positions}
    assert committed == set(np.flatnonzero(masked).tolist())
    if not sampler.revises:
        assert sum(map(len, history)) == len(committed)  # each of them once


@pytest.mark.parametrize("name", samplers.SAMPLERS)
@pytest.mark.parametrize("unheeded", ["threshold", "factor"])
@settings(max_examples=25)
@given(data=st.data())
def test_options_that_are_not_heeded_do_not_matter(name, unheeded, data):
    kind = samplers.find(name)
    config = data.draw(configs([name]))
    others = {key: data.draw(VALUES[key]) for key in VALUES.keys() - kind.heeds}
    others.pop("factor" if unheeded == "threshold" else "threshold", None)
    if name not in BOTH and (config.threshold or config.factor is not None):
        others.pop(unheeded, None)
    crowded = replace(config, **others)
    said, block = data.draw(situations())
    one, other = samplers.build(config), samplers.build(crowded)
    assert kind.asks_for(config) == kind.asks_for(crowded)
    assert one.idle(block) == other.idle(block)
    for was, now in zip(outcome(one, said, block), outcome(other, said, block), strict=True):
        np.testing.assert_array_equal(was, now)


BY_RANK: dict[str, dict[str, Any]] = {
    "low_confidence": {"steps": 2},
    "random": {"steps": 2},
    "maskgit_plus": {"steps": 2, "schedule": "uniform"},
    "topk_margin": {"steps": 2, "schedule": "uniform"},
    "entropy": {"steps": 2, "schedule": "uniform"},
    "confidence_threshold": {"steps": 2, "threshold": 0.1},
    "low_confidence_static": {"steps": 3},
    "low_confidence_dynamic": {"steps": 3, "threshold": 1.0},
    "sequential": {"steps": 3},
    "klass": {"steps": 2},
    "fixed": {"most": 2, "threshold": 0.1},
    "cumulative_error": {"threshold": 0.15},
    "confidence_threshold_ref": {"threshold": 0.1, "most": 2, "factor": 3.0},
    "confidence_threshold_bound": {"threshold": 0.1, "most": 2},
}


@pytest.mark.parametrize("name", BY_RANK)
def test_among_equals_the_lowest_positions_are_taken(name):
    even = np.full((6, 2), 0.0)
    said = replace(
        blocks.greedy(even),
        margin=np.full(6, 0.25),
        entropy=np.full(6, 0.5),
        noise=np.full(6, 0.5),
    )
    block = blocks.state([0, 1, 0, 1, 1, 1])
    assert blocks.select(blocks.build(name, **BY_RANK[name]), said, block) == [1, 3]


@pytest.mark.parametrize(
    "name", ["low_confidence", "hierarchy", "wino", "credit", "linear_speculation"]
)
def test_where_nothing_is_sure_the_first_of_the_best_is_taken(name):
    logits = np.zeros((5, 3))
    block = blocks.state([0, 1, 0, 1, 1])
    options = {"threshold": 0.99}
    if name == "hierarchy":
        options["low_threshold"] = 0.98
    assert blocks.select(blocks.build(name, **options), blocks.greedy(logits), block) == [1]


def test_the_entropy_bound_takes_the_first_of_equals():
    said = blocks.prediction([0.5] * 4, entropy=[0.7] * 4)
    block = blocks.state([0, 1, 1, 1])
    assert blocks.select(blocks.build("entropy_bounded", gamma=0.1), said, block) == [1]


@pytest.mark.parametrize("name", DENOISING)
def test_a_part_that_is_missing_is_named(name):
    kind = samplers.find(name)
    config = SamplerConfig(name=name)
    if "alg_temp" in kind.heeds:
        config = replace(config, alg_temp=1.0)
    if "uncounted_ids" in kind.heeds:
        config = replace(config, uncounted_ids=(1,))
    words = {"margin": "margins", "entropy": "entropies", "shadow": "shadow"}
    missing = kind.asks_for(config)
    bare, block = blocks.prediction([0.5, 0.6]), blocks.state([1, 1])
    if not missing:
        outcome(kind(config), bare, block)
        return
    with pytest.raises(ValueError, match="|".join(words.get(part, part) for part in missing)):
        outcome(kind(config), bare, block)


@pytest.mark.parametrize("name", ["wino", "remdm", *REWRITING])
def test_what_was_given_must_be_known_where_positions_are_reopened(name):
    said = replace(blocks.greedy(np.eye(2)), noise=np.zeros(2), shadow=blocks.candidates(np.eye(2)))
    block = replace(blocks.state([1, 1], edits=blocks.EDITS), given=None)
    with pytest.raises(ValueError, match="given"):
        outcome(blocks.build(name), said, block)


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_the_table_and_the_classes_agree(name):
    kind = samplers.find(name)
    options = {field.name for field in fields(SamplerConfig)}
    assert type(blocks.build(name)) is kind
    assert kind.__module__.endswith(f".{name}")
    assert kind.heeds <= options
    assert kind.defaults.keys() <= kind.heeds
    assert kind.source
    assert (kind.__doc__ or "").startswith("Commit") or name in ("linear_speculation", "renoise")
    blocks.build(name, **kind.defaults)  # legal values


@pytest.mark.parametrize("name", samplers.SAMPLERS)
def test_defaults_are_what_is_used(name):
    kind = samplers.find(name)
    for option, default in kind.defaults.items():
        assert blocks.build(name).option(option) == default
    others = {option: 2 if isinstance(d, int) else 0.5 for option, d in kind.defaults.items()}
    sampler = blocks.build(name, **others)
    assert {option: sampler.option(option) for option in others} == others


def test_best_takes_the_lowest_position_at_ties():
    scores = np.array([0.5, 0.9, 0.5, 0.9, 0.5])
    everywhere = np.ones(5, bool)
    assert best(scores, everywhere, 1).tolist() == [False, True, False, False, False]
    assert best(scores, everywhere, 3).tolist() == [True, True, False, True, False]
    assert best(scores, np.array([0, 0, 1, 0, 1], bool), 1).nonzero()[0].tolist() == [2]


def test_many_equals_keep_their_order():
    scores, masked = np.tile([0.5, 0.25], 50), np.arange(100) % 3 > 0
    high = [i for i in range(100) if masked[i] and i % 2 == 0]
    assert np.flatnonzero(best(scores, masked, 9)).tolist() == high[:9]
    low = [i for i in range(100) if masked[i] and i % 2]
    assert ranked(scores, masked).tolist() == high + low


@given(situations(), st.integers(0, 12))
def test_best_is_a_stable_sort(situation, count):
    said, block = situation
    order = [int(i) for i in np.flatnonzero(block.masked)]
    order.sort(key=lambda i: -said.confidence[i])  # list.sort is stable
    assert ranked(said.confidence, block.masked).tolist() == order
    expected = sorted(order[:count])
    found = best(said.confidence, block.masked, count)
    assert np.flatnonzero(found).tolist() == expected
    np.testing.assert_array_equal(marked(block.masked, np.array(order[:count], np.int64)), found)


def test_the_base_class_chooses_nothing():
    with pytest.raises(NotImplementedError):
        Sampler(SamplerConfig()).rewrite(
            Prediction(np.zeros(1, int), np.ones(1)), blocks.state([1])
        )
    with pytest.raises(NotImplementedError):
        Sampler(SamplerConfig()).select(Prediction(np.zeros(1, int), np.ones(1)), blocks.state([1]))
