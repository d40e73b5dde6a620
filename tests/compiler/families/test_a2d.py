import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.families import Family, FamilySpec, Overrides, detect
from dlmc.families.a2d import A2D, A2D_BD3LM
from dlmc_runtime.errors import CheckpointError

QWEN3: dict[str, Any] = {
    "architectures": ["A2DQwen3LMHeadModel"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "model_type": "a2d-qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN2 = {
    **{key: value for key, value in QWEN3.items() if key not in ("attention_bias", "head_dim")},
    "architectures": ["A2DQwen2LMHeadModel"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
}
LLAMA = {**QWEN3, "architectures": ["A2DLlamaLMHeadModel"], "model_type": "a2d-llama"}
MASK = Overrides(mask_id=151669)


def read(family: Family, config: dict[str, Any], **changes: Any) -> FamilySpec:
    return family.read({**config, **changes}, {}, MASK)


def test_one_configuration_two_families():
    assert detect(QWEN3) is A2D
    assert detect(QWEN3, prefer="a2d_bd3lm") is A2D_BD3LM
    assert detect(QWEN3, "a2d_bd3lm") is A2D_BD3LM
    assert detect(QWEN3, prefer="sdar") is A2D


def test_whole_sequences():
    spec = read(A2D, QWEN3)
    assert (spec.family, spec.architecture) == ("a2d", "A2DQwen3LMHeadModel")
    assert (spec.regime, spec.shift, spec.block_length) == ("full", 0, 32)
    assert (spec.aligned_to, spec.last_block) == ("sequence", "cut")
    assert spec.mask_id == 151669


def test_block_by_block():
    spec = read(A2D_BD3LM, QWEN3)
    assert (spec.family, spec.regime, spec.block_length) == ("a2d_bd3lm", "block", 32)
    assert (spec.aligned_to, spec.last_block, spec.seeded) == ("answer", "cut", False)


@pytest.mark.parametrize(
    ("config", "qk_norm", "qkv_bias", "head_dim"),
    [(QWEN3, True, False, 128), (QWEN2, False, True, 64), (LLAMA, False, False, 128)],
)
@pytest.mark.parametrize("family", [A2D, A2D_BD3LM], ids=lambda family: family.name)
def test_networks(
    family: Family, config: dict[str, Any], qk_norm: bool, qkv_bias: bool, head_dim: int
):
    spec = read(family, config)
    assert spec.architecture == config["architectures"][0]
    assert spec.denoiser.qk_norm is qk_norm
    assert spec.denoiser.qkv_bias is qkv_bias
    assert spec.denoiser.head_dim == head_dim
    names = family.weight_names(spec)
    assert ("layers.0.self_attn.q_norm.weight" in names) is qk_norm
    assert ("layers.0.self_attn.v_proj.bias" in names) is qkv_bias


def test_qwen3_assumes_a_head_size():
    assert read(A2D, QWEN3, head_dim=None).denoiser.head_dim == 128


@pytest.mark.parametrize("pack", ["a2d_qwen3_mdlm", "a2d_qwen3_bd3lm"])
def test_golden_configs(goldens: Path, pack: str):
    config = json.loads((goldens / pack / "config.json").read_text())
    with pytest.raises(
        CheckpointError, match="'mask_token_id' is missing: state it with --mask-id"
    ):
        detect(config).read(config, {}, Overrides())
    spec = detect(config).read(config, {}, Overrides(mask_id=300))
    assert spec.denoiser.tie_word_embeddings


@pytest.mark.parametrize(
    ("config", "changes", "sentence"),
    [
        (QWEN3, {"attention_bias": True}, "'attention_bias' is true"),
        (QWEN2, {"attention_bias": False}, "'attention_bias' is false"),
        (QWEN2, {"use_sliding_window": True}, "'use_sliding_window' is true"),
        (LLAMA, {"mlp_bias": True}, "'mlp_bias' is true"),
    ],
)
def test_what_the_graph_does_not_implement(
    config: dict[str, Any], changes: dict[str, Any], sentence: str
):
    with pytest.raises(CheckpointError, match=sentence):
        read(A2D, config, **changes)
