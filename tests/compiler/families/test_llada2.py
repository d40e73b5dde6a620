import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.llada2 import LLADA2
from dlmc_runtime import legal
from dlmc_runtime.errors import CheckpointError, UsageError
from dlmc_runtime.manifest import Head, SamplerSpec
from dlmc_runtime.samplers.config import SamplerConfig

RELEASED: dict[str, Any] = {
    "architectures": ["LLaDA2MoeModelLM"],
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "max_position_embeddings": 32768,
    "model_type": "llada2_moe",
    "moe_intermediate_size": 512,
    "moe_router_enable_expert_bias": True,
    "n_group": 8,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "num_shared_experts": 1,
    "pad_token_id": 156892,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 600000,
    "rotary_dim": 64,
    "routed_scaling_factor": 2.5,
    "router_dtype": "fp32",
    "score_function": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "use_bias": False,
    "use_qkv_bias": False,
    "vocab_size": 157184,
}
# What 2.2 adds.
BLOCK_ROUTED = {"block_size": 32, "expert_capacity": 48, "use_qk_norm": True}


def read(
    generation: dict[str, Any] | None = None, overrides: Overrides | None = None, /, **changes: Any
) -> FamilySpec:
    return LLADA2.read({**RELEASED, **changes}, generation or {}, overrides or Overrides())


def test_released_shape():
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length) == ("block", 0, 32)
    assert (spec.mask_id, spec.stop_ids, spec.pad_id) == (156895, (156892,), 156892)
    assert spec.sampler.name == "low_confidence_dynamic"
    assert spec.sampler.parameters == {"threshold": 0.95}
    denoiser, moe = spec.denoiser, spec.denoiser.moe
    assert (denoiser.fused_qkv, denoiser.qk_norm, denoiser.rotary_dim) == (True, True, 64)
    assert denoiser.kinds == ("dense",) + ("moe",) * 19
    assert moe is not None
    assert (moe.experts, moe.top_k, moe.width, moe.shared_width) == (256, 8, 512, 512)
    assert (moe.groups, moe.kept_groups, moe.scale, moe.scoring) == (8, 4, 2.5, "sigmoid")
    assert (moe.expert_bias, moe.normalised, moe.capacity) == (True, True, 0)
    assert spec.routing_block is None


def test_2_2_routes_by_block_and_ignores_groups():
    spec = read({"eos_token_id": [156892, 156900]}, n_group=7, topk_group=9, **BLOCK_ROUTED)
    moe = spec.denoiser.moe
    assert moe is not None
    assert (moe.capacity, moe.routing_block, moe.groups, moe.kept_groups) == (48, 32, 1, 1)
    assert spec.routing_block == spec.attention.routing_block == 32
    assert spec.stop_ids == (156892, 156900)


def test_2_2_deletes_and_inserts():
    edits = {"delete_token_id": 156930, "split_token_id": 156931}
    spec = read(**BLOCK_ROUTED, **edits)
    assert (spec.delete_id, spec.split_id) == (156930, 156931)
    assert spec.sampler == SamplerSpec(name="levenshtein")
    head = Head(variant="plain", candidates=spec.candidates)
    config = SamplerConfig("levenshtein")
    legal.check(config, legal.Planned(spec.family, spec.attention, head, spec.tokens))
    assert read().split_id is read().delete_id is None


@pytest.mark.parametrize(
    "edits",
    [
        {"delete_token_id": 5},
        {"split_token_id": 5},
        {"delete_token_id": 5, "split_token_id": 5},
    ],
)
def test_one_token_alone_does_not_edit(edits):
    with pytest.raises(CheckpointError, match="they must be two tokens, or both left out"):
        read(**edits)


@pytest.mark.parametrize("token", [156895, 156892])
def test_tokens_that_edit_are_no_others(token):
    with pytest.raises(CheckpointError, match="is the mask or a stop token"):
        read(delete_token_id=token, split_token_id=156931)


def test_blocks_of_2_2_are_whole():
    longer = read({}, Overrides(block_length=64), **BLOCK_ROUTED)
    assert (longer.block_length, longer.routing_block) == (64, 32)
    with pytest.raises(UsageError, match=r"--block-length 48 does not fit llada2.*: give a mult"):
        read({}, Overrides(block_length=48), **BLOCK_ROUTED)
    with pytest.raises(UsageError, match="--attention full does not fit llada2"):
        read({}, Overrides(regime="full"), **BLOCK_ROUTED)


def test_no_shared_expert_and_no_dense_layer():
    spec = read(num_shared_experts=None, first_k_dense_replace=0)
    assert spec.denoiser.kinds == ("moe",) * 20
    assert spec.denoiser.moe is not None
    assert spec.denoiser.moe.shared_width == 0
    names = LLADA2.weight_names(spec)
    assert not [name for name in names if "shared" in name or "mlp.up_proj" in name]


def test_rope_as_transformers_5_writes_it():
    nested = {"rope_theta": 3e6, "rope_type": "default", "partial_rotary_factor": 0.25}
    spec = read(rope_theta=None, rotary_dim=32, partial_rotary_factor=None, rope_parameters=nested)
    assert (spec.denoiser.rope_theta, spec.denoiser.rotary_dim) == (3e6, 32)
    assert read(partial_rotary_factor=None).denoiser.rotary_dim == 64


def test_the_golden_pack(goldens: Path):
    config = json.loads((goldens / "llada2" / "config.json").read_text())
    assert detect(config) is LLADA2
    with pytest.raises(CheckpointError, match="'mask_token_id' is missing: state it with"):
        LLADA2.read(config, {}, Overrides())
    spec = LLADA2.read(config, {}, Overrides(mask_id=316))
    names, stacked = LLADA2.weight_names(spec), LLADA2.stacked_names(spec)
    assert names["layers.1.self_attn.qkv_proj.weight"].endswith("query_key_value.weight")
    assert "layers.0.mlp.up_proj.weight" in names
    assert "layers.1.mlp.up_proj.weight" not in names
    assert stacked.keys() == {
        f"layers.{i}.mlp.experts.{part}_proj" for i in (1, 2) for part in ("gate_up", "down")
    }
    first = "model.layers.2.mlp.experts.0."
    pair = stacked["layers.2.mlp.experts.gate_up_proj"]
    assert pair[:2] == (first + "gate_proj.weight", first + "up_proj.weight")
    assert len(pair) == 32


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("use_bias", True),
        ("use_qkv_bias", True),
        ("score_function", "softmax"),
        ("router_dtype", "bf16"),
        ("norm_topk_prob", False),
        ("use_qk_norm", False),
        ("moe_router_enable_expert_bias", False),
        ("rope_scaling", {"type": "yarn"}),
    ],
)
def test_what_the_graph_does_not_implement(key: str, value: Any):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is .*implements"):
        read(**{key: value})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_group": 7}, "256 experts cannot form 7 groups"),
        ({"n_group": 256}, "256 experts cannot form 256 groups: groups are of one size, of two"),
        ({"topk_group": 9}, "'topk_group' is 9"),
        ({"n_group": 64, "topk_group": 1}, "1 groups of 4 experts are too few for 8"),
        ({"num_experts_per_tok": 257}, "'num_experts_per_tok' is 257"),
        ({"num_experts": 5000}, "'num_experts' is 5000"),
        ({"first_k_dense_replace": 21}, "'first_k_dense_replace' is 21"),
        ({"first_k_dense_replace": -1}, "'first_k_dense_replace' is -1: it must be a whole number"),
        ({"rotary_dim": 32}, "'rotary_dim' is 32, 'partial_rotary_factor' means 64"),
        ({"rotary_dim": None, "partial_rotary_factor": 0.01}, "1 dimensions of a head are rotated"),
        ({"rotary_dim": None, "partial_rotary_factor": None}, "'partial_rotary_factor' is missing"),
        ({**BLOCK_ROUTED, "expert_capacity": 4}, "'expert_capacity' is 4: a token alone uses 8"),
        ({**BLOCK_ROUTED, "expert_capacity": 257}, "'expert_capacity' is 257"),
        ({"moe_intermediate_size": None}, "'moe_intermediate_size' is missing"),
        ({"n_group": None}, "'n_group' is missing"),
    ],
)
def test_sizes_that_do_not_fit(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)
