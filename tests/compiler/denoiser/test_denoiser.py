from dataclasses import replace

import pytest
import torch

from dlmc.denoiser.config import DenoiserConfig, QueryScale
from dlmc.denoiser.denoiser import Denoiser

CONFIG = DenoiserConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    qk_norm=True,
)


def make(config: DenoiserConfig = CONFIG) -> Denoiser:
    torch.manual_seed(0)
    return Denoiser(config).eval()


def empty_cache(config: DenoiserConfig, batch: int):
    shape = (batch, config.num_key_value_heads, 0, config.head_dim)
    return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_hidden_layers)]


def block_mask(length: int, block: int) -> torch.Tensor:
    index = torch.arange(length) // block
    return (index[:, None] >= index[None])[None, None]


def run(model, ids, mask, past=None, start=0):
    position = torch.arange(start, start + ids.shape[1]).expand_as(ids)
    with torch.inference_mode():
        return model(ids, position, mask, past or empty_cache(model.config, len(ids)))


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, qk_norm=False, num_key_value_heads=4),
        replace(CONFIG, num_key_value_heads=1),
        replace(CONFIG, tie_word_embeddings=True),
        replace(CONFIG, num_hidden_layers=1),
    ],
)
def test_a_block_over_its_cache_equals_the_whole_sequence(config):
    model, ids = make(config), torch.randint(50, (2, 12))
    whole, present = run(model, ids, block_mask(12, 4).expand(2, -1, -1, -1))
    cached = [(key[:, :, :8], value[:, :, :8]) for key, value in present]
    mask = torch.ones(2, 1, 4, 12, dtype=torch.bool)
    block, own = run(model, ids[:, 8:], mask, cached, start=8)
    torch.testing.assert_close(block, whole[:, 8:], rtol=1e-4, atol=1e-5)
    for (key, value), (all_keys, all_values) in zip(own, present, strict=True):
        torch.testing.assert_close(key, all_keys[:, :, 8:], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value, all_values[:, :, 8:], rtol=1e-4, atol=1e-5)


def test_what_is_masked_changes_nothing():
    model, ids = make(), torch.randint(50, (1, 10))
    mask = torch.ones(1, 1, 10, 10, dtype=torch.bool)
    mask[..., 7:] = False
    padded, _ = run(model, ids, mask)
    alone, _ = run(model, ids[:, :7], mask[:, :, :7, :7])
    torch.testing.assert_close(padded[:, :7], alone, rtol=1e-4, atol=1e-5)


def test_rows_of_a_batch_are_independent():
    model, ids = make(), torch.randint(50, (3, 6))
    mask = torch.rand(3, 1, 6, 6) < 0.6
    mask |= torch.eye(6, dtype=torch.bool)
    together, _ = run(model, ids, mask)
    for row in range(3):
        alone, _ = run(model, ids[row : row + 1], mask[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-4, atol=1e-5)


def test_a_tied_head_is_the_embedding():
    model = make(replace(CONFIG, tie_word_embeddings=True))
    assert "lm_head.weight" not in dict(model.named_parameters())
    logits = model.logits(torch.eye(32))
    torch.testing.assert_close(logits, model.embed_tokens.weight.T)


def test_logits_are_float32_whatever_the_weights():
    model = make().to(torch.bfloat16)
    assert model.logits(torch.zeros(1, 32, dtype=torch.bfloat16)).dtype == torch.float32


def test_parameter_names_are_those_of_qwen3():
    names = dict(make().named_parameters())
    assert {"embed_tokens.weight", "norm.weight", "lm_head.weight"} < names.keys()
    layer = {name.removeprefix("layers.2.") for name in names if name.startswith("layers.2.")}
    assert layer == {
        "input_layernorm.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.o_proj.weight",
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        "post_attention_layernorm.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "mlp.down_proj.weight",
    }


def test_query_scale_and_adapter_reach_every_layer():
    torch.manual_seed(0)
    scale = QueryScale(beta=0.5, positions=4)
    config = replace(CONFIG, query_scale=scale, adapter_rank=2, adapter_scale=8.0)
    model, ids = make(config), torch.randint(50, (1, 8))
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    position, past = torch.arange(8)[None], empty_cache(config, 1)
    with torch.inference_mode():
        plain, _ = model(ids, position, mask, past)
        off, _ = model(ids, position, mask, past, adapter=torch.zeros(1))
        on, _ = model(ids, position, mask, past, adapter=torch.ones(1))
    torch.testing.assert_close(plain, off)
    assert not torch.allclose(plain, on)
    unscaled = make(replace(config, query_scale=None))
    unscaled.load_state_dict(model.state_dict())
    with torch.inference_mode():
        other, _ = unscaled(ids, position, mask, past)
    assert not torch.allclose(plain, other)
