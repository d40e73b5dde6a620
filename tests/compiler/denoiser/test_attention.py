from dataclasses import replace

import numpy as np
import pytest
import torch

from dlmc.denoiser.attention import Attention
from dlmc.denoiser.config import DenoiserConfig

CONFIG = DenoiserConfig(40, 24, 32, 1, 4, 2, 8, 1e-6, 1e4)
UNTURNED = torch.ones(1), torch.zeros(1)  # cosine and sine of position 0


def heads(x, weight):
    return (x @ weight.detach().numpy().T).reshape(*x.shape[:2], -1, 8).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("key_value_heads", [1, 2, 4])
def test_is_softmax_attention_over_context_and_block(key_value_heads):
    torch.manual_seed(0)
    config = replace(CONFIG, num_key_value_heads=key_value_heads)
    attention = Attention(config)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 24)).astype(np.float32)
    past = rng.standard_normal((2, 2, key_value_heads, 5, 8)).astype(np.float32)
    mask = rng.random((2, 1, 3, 8)) < 0.5
    mask[..., 4] = True
    found, (key, value) = attention(
        torch.tensor(x),
        UNTURNED,
        torch.tensor(mask),
        (torch.tensor(past[0]), torch.tensor(past[1])),
    )
    own_key, own_value = heads(x, attention.k_proj.weight), heads(x, attention.v_proj.weight)
    np.testing.assert_allclose(key.detach(), own_key, atol=1e-5)
    np.testing.assert_allclose(value.detach(), own_value, atol=1e-5)
    groups = 4 // key_value_heads
    keys = np.concatenate((past[0], own_key), 2).repeat(groups, 1)
    values = np.concatenate((past[1], own_value), 2).repeat(groups, 1)
    scores = heads(x, attention.q_proj.weight) @ keys.swapaxes(-1, -2) / np.sqrt(8)
    weights = np.where(mask, np.exp(scores), 0)
    mixed = (weights / weights.sum(-1, keepdims=True)) @ values
    expected = (
        mixed.transpose(0, 2, 1, 3).reshape(2, 3, -1) @ attention.o_proj.weight.detach().numpy().T
    )
    np.testing.assert_allclose(found.detach(), expected, atol=1e-5)


def test_qk_norm_makes_scores_independent_of_scale():
    torch.manual_seed(0)
    attention = Attention(replace(CONFIG, qk_norm=True))
    empty = torch.zeros(1, 2, 0, 8), torch.zeros(1, 2, 0, 8)
    x, mask = torch.randn(1, 3, 24), torch.ones(1, 1, 3, 3, dtype=torch.bool)
    _, (key, _) = attention(x, UNTURNED, mask, empty)
    _, (scaled, _) = attention(100 * x, UNTURNED, mask, empty)
    torch.testing.assert_close(key, scaled, rtol=1e-4, atol=1e-4)


def test_biases_move_queries_keys_and_values():
    torch.manual_seed(0)
    attention = Attention(replace(CONFIG, qkv_bias=True))
    empty = torch.zeros(1, 2, 0, 8), torch.zeros(1, 2, 0, 8)
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    _, (key, value) = attention(torch.zeros(1, 3, 24), UNTURNED, mask, empty)
    torch.testing.assert_close(key[0, :, 0].flatten(), attention.k_proj.bias)
    torch.testing.assert_close(value[0, :, 2].flatten(), attention.v_proj.bias)
    assert attention.o_proj.bias is None


def test_queries_may_turn_otherwise_than_keys():
    torch.manual_seed(0)
    attention = Attention(CONFIG)
    empty = torch.zeros(1, 2, 0, 8), torch.zeros(1, 2, 0, 8)
    x, mask = torch.randn(1, 3, 24), torch.ones(1, 1, 3, 3, dtype=torch.bool)
    plain, kept = attention(x, UNTURNED, mask, empty)
    none = torch.zeros(8), torch.zeros(8)
    flat, same = attention(x, UNTURNED, mask, empty, query_rope=none)
    torch.testing.assert_close(kept, same)
    # Queries of 0 attend to all keys alike, so every position has the same output.
    torch.testing.assert_close(flat[:, 0], flat[:, 2])
    assert not torch.allclose(plain, flat)


def test_an_adapter_adds_to_the_rows_that_switch_it_on():
    torch.manual_seed(0)
    attention = Attention(replace(CONFIG, adapter_rank=3))
    empty = torch.zeros(2, 2, 0, 8), torch.zeros(2, 2, 0, 8)
    x, mask = torch.randn(2, 3, 24), torch.ones(2, 1, 3, 3, dtype=torch.bool)
    off, _ = attention(x, UNTURNED, mask, empty)
    scale = torch.tensor([0.0, 4.0])[:, None, None]
    mixed, _ = attention(x, UNTURNED, mask, empty, adapter=scale)
    torch.testing.assert_close(mixed[0], off[0])
    a, b = attention.o_adapter.a.weight, attention.o_adapter.b.weight
    with torch.no_grad():
        attention.o_proj.weight += 4.0 * b @ a
    merged, _ = attention(x, UNTURNED, mask, empty)
    torch.testing.assert_close(mixed[1], merged[1])
