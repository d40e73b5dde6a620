from dataclasses import replace

import pytest
import torch

from dlmc.denoiser.config import DenoiserConfig, Encoder
from dlmc.denoiser.denoiser import Denoiser

CONFIG = DenoiserConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=24,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=160_000.0,
    tie_word_embeddings=True,
    sliding_window=2,
    kinds=("global", "local", "local", "global"),
    encoder=Encoder(local_rope_theta=10_000.0, decoder_bias=True),
)


def make(config: DenoiserConfig = CONFIG) -> Denoiser:
    torch.manual_seed(0)
    return Denoiser(config).eval()


def run(model, ids, mask, sliding, past=None, start=0):
    position = torch.arange(start, start + ids.shape[1])[None]
    empty = torch.zeros(1, 4, 0, 8)
    past = past or [(empty, empty)] * model.config.num_hidden_layers
    with torch.inference_mode():
        return model(ids, position, mask, past, sliding_attention_mask=sliding)


def masks(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    position = torch.arange(length)
    near = (position[:, None] - position[None]).abs() <= 2
    return torch.ones(1, 1, length, length, dtype=torch.bool), near[None, None]


def test_parameter_names():
    names = {name for name, _ in make().named_parameters()}
    assert {name for name in names if not name.startswith("layers.")} == {
        "embed_tokens.weight",
        "embed_norm.weight",
        "norm.weight",
        "transform.dense.weight",
        "transform.norm.weight",
        "lm_head_bias",
    }
    assert "layers.0.input_layernorm.weight" not in names
    assert {name for name in names if name.startswith("layers.1.")} == {
        "layers.1.input_layernorm.weight",
        "layers.1.self_attn.qkv_proj.weight",
        "layers.1.self_attn.o_proj.weight",
        "layers.1.post_attention_layernorm.weight",
        "layers.1.mlp.gate_up_proj.weight",
        "layers.1.mlp.down_proj.weight",
    }


def test_without_a_bias():
    assert CONFIG.encoder is not None
    plain = replace(CONFIG, encoder=replace(CONFIG.encoder, decoder_bias=False))
    model = make(plain)
    assert not hasattr(model, "lm_head_bias")
    assert model.logits(torch.zeros(1, 32)).shape == (1, 50)


def test_the_bias_is_added_to_logits():
    model = make()
    before = model.logits(torch.ones(1, 32))
    with torch.no_grad():
        model.lm_head_bias.copy_(torch.arange(50))
    torch.testing.assert_close(model.logits(torch.ones(1, 32)), before + torch.arange(50))


@pytest.mark.parametrize("layers", [1, 2])
def test_only_local_layers_heed_the_window(layers: int):
    model, ids = make(CONFIG.with_kinds(CONFIG.kinds[:layers])), torch.randint(50, (1, 12))
    mask, near = masks(12)
    found, _ = run(model, ids, mask, near)
    everywhere, _ = run(model, ids, mask, mask)
    assert torch.allclose(found, everywhere) is (layers == 1)


def test_a_block_over_its_cache_equals_the_whole_sequence():
    model, ids = make(), torch.randint(50, (1, 12))
    index = torch.arange(12) // 4
    block = (index[:, None] >= index[None])[None, None]
    near = masks(12)[1] & block
    whole, present = run(model, ids, block, near)
    cached = [(key[:, :, :8], value[:, :, :8]) for key, value in present]
    found, _ = run(model, ids[:, 8:], block[:, :, 8:], near[:, :, 8:], cached, start=8)
    torch.testing.assert_close(found, whole[:, 8:], rtol=1e-4, atol=1e-5)
