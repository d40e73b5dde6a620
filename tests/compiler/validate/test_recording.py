from itertools import pairwise

import numpy as np
import pytest

from dlmc.validate.recording import record, stored, trimmed, widened
from dlmc_runtime.cache import HostCache
from dlmc_runtime.engines.base import Store
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Model
from dlmc_runtime.samplers.config import SamplerConfig

MODEL = Model(
    vocab_size=8,
    hidden_size=4,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=2,
    max_position_embeddings=16,
    parameters=1,
)


def _filled(count, row=0):
    cache = HostCache(MODEL, batch=2, size=6)
    present = [np.full((2, 1, 4, 2), i + 1, np.float32) for i in range(len(cache.past))]
    cache.write(row, count, present)
    return cache


def test_the_recording_is_what_the_generator_does(recording, reference):
    generator = Generator(reference, None)
    result = generator.generate([5, 6, 7, 8, 9, 10], max_new_tokens=6, ignore_eos=True)
    assert recording.answers == (result.tokens,)
    assert len(recording.states) == result.forwards
    assert [state.forward for state in recording.states] == [*range(1, result.forwards + 1)]
    assert recording.starts == (6,)


def test_states_keep_what_went_in_before_the_cache_grew(states):
    kinds = [state.task.kind for state in states]
    assert {"prefill", "denoise", "commit"} <= {*kinds}
    filled = 0
    for state in states:
        assert state.past.filled[0] == filled
        assert state.past.size == filled  # no more than what is committed is kept
        filled += sum(store.count for store in state.stores)
        assert (state.choice is None) == (state.task.kind != "denoise")
        assert bool(state.kept) == bool(state.stores)


def test_choices_repeat_what_was_committed(states):
    for state, after in pairwise(states):
        if state.choice is None:
            continue
        prediction = state.choice.predict(state.outputs)
        chosen = state.choice.select(prediction)
        window = slice(state.task.head_start, state.task.head_end)
        np.testing.assert_array_equal(state.masked[window] & ~after.masked[window], chosen)
        np.testing.assert_array_equal(after.canvas[window][chosen], prediction.tokens[chosen])


def test_replay_on_another_engine_repeats_the_state(states, engine):
    for state in states:
        outputs, kept = state.replay(engine)
        np.testing.assert_allclose(outputs.top_logits, state.outputs.top_logits, atol=1e-3)
        assert kept.keys() == state.kept.keys()
        for name, values in kept.items():
            np.testing.assert_allclose(values, state.kept[name], atol=1e-3)


def test_replay_leaves_the_state_as_it_was(states, engine):
    last = states[-1]
    before = {name: past.copy() for name, past in last.past.past.items()}
    last.replay(engine)
    for name, past in before.items():
        np.testing.assert_array_equal(last.past.past[name], past)


def test_states_between_two_stores_share_one_copy_of_the_cache(states):
    pairs = [(a, b) for a, b in pairwise(states) if not a.stores]
    assert pairs
    assert all(a.past is b.past for a, b in pairs)


def test_recording_stops_where_it_is_told(reference):
    generator = Generator(reference, None)
    request = generator.request([5, 6, 7, 8, 9, 10], max_new_tokens=6, ignore_eos=True)
    short = record(reference, [request, request], 2)
    assert len(short.states) == 2
    assert len(short.answers) == 2


def test_the_noise_of_a_random_order_is_kept(reference):
    generator = Generator(reference, None)
    sampler = SamplerConfig("random", steps=2)
    request = generator.request([5, 6, 7, 8], max_new_tokens=4, sampler=sampler, seed=3)
    noises = [
        state.choice.noise
        for state in record(reference, [request]).states
        if state.choice is not None
    ]
    assert len(noises) == 2
    first = np.random.default_rng(3).random(4)
    np.testing.assert_array_equal(noises[0], first)


@pytest.mark.parametrize("count", [0, 3])
def test_trimming_is_undone_by_widening(count):
    contents = _filled(count).contents()
    narrow = trimmed(contents)
    assert {past.shape[2] for past in narrow.past.values()} == {count}
    wide = widened(narrow, dict.fromkeys(narrow.past, 6))
    for name, past in contents.past.items():
        np.testing.assert_array_equal(wide.past[name], past)


def test_stored_finds_what_was_written_last_to_row_0():
    contents = _filled(3).contents()
    found = stored(contents, [Store(0, 2)])
    assert list(found) == list(contents.past)
    for layer, values in enumerate(found.values()):
        assert values.shape == (1, 2, 2)
        assert (values == layer + 1).all()
    cache = _filled(4)
    cache.write(0, 2, [np.full((2, 1, 4, 2), -1, np.float32)] * len(cache.past), at=1)
    for values in stored(cache.contents(), [Store(0, 2, at=1)]).values():
        assert values.shape == (1, 2, 2)
        assert (values == -1).all()
    assert not stored(_filled(3, row=1).contents(), [Store(1, 2)])
