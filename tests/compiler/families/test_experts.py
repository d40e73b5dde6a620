"""LLaDA-MoE, SDAR-MoE and RND1, whose experts are stored one by one under Qwen3-MoE's names."""

from typing import Any

import pytest

from dlmc.families import Family, FamilySpec, Overrides, detect
from dlmc.families.llada_moe import LLADA_MOE
from dlmc.families.rnd1 import RND1
from dlmc.families.sdar import SDAR_MOE
from dlmc_runtime.errors import CheckpointError
from dlmc_runtime.manifest import SamplerSpec

LLADA_MOE_CONFIG: dict[str, Any] = {
    "architectures": ["LLaDAMoEModelLM"],
    "attention_bias": False,
    "clip_qkv": None,
    "dense_intermediate_size": 8192,
    "expert_intermediate_size": 1024,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "max_position_embeddings": 8192,
    "model_type": "llada",
    "moe_layer_freq": [1] * 16,
    "moe_router_enable_expert_bias": False,
    "moe_router_score_function": "softmax",
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "pad_token_id": 156892,
    "eos_token_id": 156892,
    "partial_rotary_factor": 1,
    "qk_layernorm": True,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 50000,
    "routed_scaling_factor": 1,
    "router_num_group": None,
    "router_topk_group": None,
    "shared_expert_intermediate_size": None,
    "tie_word_embeddings": False,
    "vocab_size": 157184,
}
QWEN3_MOE: dict[str, Any] = {
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
RND1_CONFIG = {**QWEN3_MOE, "architectures": ["RND1LM"], "rope_scaling": False}
SDAR_MOE_CONFIG = {
    **QWEN3_MOE,
    "architectures": ["SDARMoeForCausalLM"],
    "block_size": 4,
    "mask_token_id": 151669,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llada_moe": LLADA_MOE_CONFIG,
    "rnd1": RND1_CONFIG,
    "sdar_moe": SDAR_MOE_CONFIG,
}
FAMILIES = [LLADA_MOE, RND1, SDAR_MOE]


def read(family: Family, **changes: Any) -> FamilySpec:
    return family.read({**CONFIGS[family.name], **changes}, {}, Overrides())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_detected_by_architecture_and_keys(family: Family):
    assert detect(CONFIGS[family.name]) is family


def test_the_dense_family_has_none_of_the_keys():
    assert detect({**LLADA_MOE_CONFIG, "architectures": ["LLaDAModelLM"]}) is LLADA_MOE
    dense = {"architectures": ["LLaDAModelLM"], "d_model": 64, "n_layers": 2, "n_heads": 4}
    assert detect(dense).name == "llada"


def test_llada_moe():
    spec = read(LLADA_MOE)
    assert (spec.regime, spec.shift, spec.block_length) == ("full", 0, 32)
    assert (spec.mask_id, spec.stop_ids, spec.sampler.name) == (
        156895,
        (156892,),
        "low_confidence",
    )
    moe = spec.denoiser.moe
    assert moe is not None
    assert (moe.experts, moe.top_k, moe.width, moe.shared_width) == (64, 8, 1024, 0)
    assert (moe.scoring, moe.normalised, moe.scale, moe.expert_bias) == ("softmax", False, 1, False)
    assert spec.denoiser.kinds == ("moe",) * 16
    # The reference never scales the scores to a sum of one, whatever the key says.
    assert read(LLADA_MOE, norm_topk_prob=True) == spec


def test_llada_moe_states_which_layers_have_experts():
    spec = read(LLADA_MOE, moe_layer_freq=[0, 1] * 8)
    assert spec.denoiser.kinds == ("dense", "moe") * 8
    assert spec.denoiser.intermediate_size == 8192


def test_rnd1():
    spec = read(RND1)
    assert spec.sampler == SamplerSpec(name="entropy", parameters={"schedule": "rnd1"})
    assert (spec.regime, spec.shift, spec.mask_id, spec.candidates) == ("full", 1, 151669, 32)
    assert spec.block_length == spec.max_position_embeddings == 40960
    assert spec.denoiser.qk_norm


def test_sdar_moe():
    spec = read(SDAR_MOE)
    assert (spec.family, spec.regime, spec.shift) == ("sdar_moe", "block", 0)
    assert (spec.mask_id, spec.block_length) == (151669, 4)


@pytest.mark.parametrize("family", [RND1, SDAR_MOE], ids=lambda family: family.name)
def test_layers_of_qwen3_moe(family: Family):
    spec = read(family, decoder_sparse_step=2, mlp_only_layers=[3])
    assert spec.denoiser.kinds == (("dense", "moe", "dense", "dense") + ("dense", "moe") * 22)
    assert read(family, norm_topk_prob=None).denoiser.moe.normalised is False  # type: ignore[union-attr]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_tensor_names(family: Family):
    spec = read(family)
    names, stacked = family.weight_names(spec), family.stacked_names(spec)
    assert names["layers.1.mlp.gate.weight"] == "model.layers.1.mlp.gate.weight"
    assert not [name for name in names if "mlp.up_proj" in name or "bias" in name]
    last = spec.denoiser.num_hidden_layers - 1
    down = stacked[f"layers.{last}.mlp.experts.down_proj"]
    assert down[1] == f"model.layers.{last}.mlp.experts.1.down_proj.weight"
    assert len(down) == CONFIGS[family.name]["num_experts"]


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        (LLADA_MOE, "moe_router_enable_expert_bias", True),
        (LLADA_MOE, "moe_router_score_function", "sigmoid"),
        (LLADA_MOE, "shared_expert_intermediate_size", 512),
        (LLADA_MOE, "router_num_group", 8),
        (LLADA_MOE, "qk_layernorm", False),
        (LLADA_MOE, "clip_qkv", 8.0),
        (RND1, "attention_bias", True),
        (RND1, "rope_scaling", {"rope_type": "yarn"}),
        (SDAR_MOE, "hidden_act", "gelu"),
    ],
)
def test_what_the_graph_does_not_implement(family: Family, key: str, value: Any):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is .*implements"):
        read(family, **{key: value})


@pytest.mark.parametrize(
    ("family", "changes", "sentence"),
    [
        (LLADA_MOE, {"moe_layer_freq": [1] * 3}, "'moe_layer_freq' is no list of 0 or 1 for each"),
        (LLADA_MOE, {"moe_layer_freq": [2] * 16}, "'moe_layer_freq' is no list"),
        (LLADA_MOE, {"moe_layer_freq": 1}, "'moe_layer_freq' is no list"),
        (LLADA_MOE, {"num_experts_per_tok": 65}, "'num_experts_per_tok' is 65"),
        (RND1, {"mlp_only_layers": [48]}, "'mlp_only_layers' is no list of layers: .* 0 to 47"),
        (RND1, {"mlp_only_layers": 3}, "'mlp_only_layers' is no list of layers"),
        (RND1, {"decoder_sparse_step": 0}, "'decoder_sparse_step' is 0"),
        (SDAR_MOE, {"num_experts": 0}, "'num_experts' is 0"),
        (SDAR_MOE, {"moe_intermediate_size": None}, "'moe_intermediate_size' is missing"),
    ],
)
def test_values_that_do_not_fit(family: Family, changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(family, **changes)
