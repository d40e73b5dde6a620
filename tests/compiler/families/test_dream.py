import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.dream import DREAM
from dlmc_runtime.errors import CheckpointError

RELEASED: dict[str, Any] = {
    "architectures": ["DreamModel"],
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "mask_token_id": 151666,
    "max_position_embeddings": 131072,
    "model_type": "Dream",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def read(generation: dict[str, Any] | None = None, /, **changes: Any) -> FamilySpec:
    return DREAM.read({**RELEASED, **changes}, generation or {}, Overrides())


def test_released_shape():
    assert detect(RELEASED) is DREAM
    spec = read({"bos_token_id": 151665})
    assert (spec.regime, spec.shift, spec.seeded) == ("full", 1, False)
    assert spec.block_length == spec.max_position_embeddings == 131072
    assert (spec.mask_id, spec.pad_id, spec.bos_id) == (151666, 151643, 151665)
    assert spec.stop_ids == (151643,)
    assert (spec.denoiser.head_dim, spec.denoiser.qkv_bias, spec.denoiser.qk_norm) == (
        128,
        True,
        False,
    )


def test_golden_config(goldens: Path):
    config = json.loads((goldens / "dream" / "config.json").read_text())
    spec = DREAM.read(config, {}, Overrides())
    assert spec.mask_id == config["mask_token_id"]
    assert spec.denoiser.head_dim == 16


def test_biases_are_among_the_weights():
    names = DREAM.weight_names(read())
    assert names["layers.27.self_attn.k_proj.bias"] == "model.layers.27.self_attn.k_proj.bias"
    assert not any(
        "o_proj.bias" in name or "norm.weight" in name[-18:-6] for name in names.values()
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("use_mrope", True),
        ("rope_scaling", {"rope_type": "yarn"}),
        ("attention_bias", False),
    ],
)
def test_what_the_graph_does_not_implement(key: str, value: Any):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is .*implements"):
        read(**{key: value})


def test_a_block_causal_relative_is_another_network():
    with pytest.raises(CheckpointError, match="has 'block_size'"):
        detect({**RELEASED, "block_size": 32})


@pytest.mark.parametrize("key", ["hidden_size", "mask_token_id", "max_position_embeddings"])
def test_missing_keys(key: str):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is missing"):
        read(**{key: None})


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": 151643}, 151643),
        ({"delete_token_id": 8}, 8),
        ({"eos_token_id": 9}, 9),
        ({}, None),
    ],
)
def test_spans_shrink_at_the_delete_or_the_stop_token(
    generation: dict[str, Any], expected: int | None
):
    spec = read({"expand_token_id": 7, **generation}, eos_token_id=None, pad_token_id=151643)
    assert (spec.expand_id, spec.delete_id) == (7, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"expand_token_id": 151666},
        {"expand_token_id": [7, 8]},
        {"expand_token_id": 7, "delete_token_id": 7},
        {"expand_token_id": 7, "delete_token_id": 151666},
        {"expand_token_id": 151643},
    ],
)
def test_tokens_that_grow_and_shrink_spans_differ(changes: dict[str, Any]):
    with pytest.raises(CheckpointError, match="must be one token each, and differ"):
        read(changes)
