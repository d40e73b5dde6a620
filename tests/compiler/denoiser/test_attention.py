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
