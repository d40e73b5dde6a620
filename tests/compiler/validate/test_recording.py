import numpy as np

from dlmc.validate.recording import stored
from dlmc_runtime.cache import HostCache
from dlmc_runtime.engines.base import Store
from dlmc_runtime.manifest import Model

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


def _filled(count):
    cache = HostCache(MODEL, batch=2, size=6)
    present = [np.full((2, 1, 4, 2), i + 1, np.float32) for i in range(len(cache.past))]
    cache.write(1, count, present)
    return cache


def test_states_keep_what_went_in_before_the_cache_grew(states):
    stores = [state for state in states if state.stores]
    assert stores
    for state in stores:
        (store,) = state.stores
        grown = state.after.filled[store.row] - state.before.filled[store.row]
        assert grown == store.count
    assert states[0].before.filled[0] == 0


def test_replay_on_the_same_engine_repeats_the_state(states, engine):
    for state in states:
        outputs, cache = state.replay(engine)
        np.testing.assert_allclose(outputs.top_logits, state.outputs.top_logits, atol=1e-3)
        np.testing.assert_array_equal(cache.filled, state.after.filled)


def test_replay_leaves_the_state_as_it_was(states, engine):
    before = {name: past.copy() for name, past in states[0].before.past.items()}
    states[0].replay(engine)
    for name, past in before.items():
        np.testing.assert_array_equal(states[0].before.past[name], past)


def test_stored_finds_what_was_appended_last():
    cache = _filled(3)
    found = stored(cache, [Store(1, 2)])
    assert set(found) == {f"{name}[1]" for name in cache.past}
    for layer, values in enumerate(found.values()):
        assert values.shape == (1, 2, 2)
        assert (values == layer + 1).all()
