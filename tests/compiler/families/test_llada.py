import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides
from dlmc.families.llada import LLADA
from dlmc_runtime.errors import CheckpointError

RELEASED: dict[str, Any] = {
    "architectures": ["LLaDAModelLM"],
    "activation_type": "silu",
    "block_type": "llama",
    "d_model": 4096,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "layer_norm_type": "rms",
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "mlp_ratio": 4,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_theta": 500000.0,
    "vocab_size": 126464,
    "weight_tying": False,
}


def read(**changes: object) -> FamilySpec:
    return LLADA.read({**RELEASED, **changes}, {}, Overrides())


def test_released_shape():
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length) == ("full", 0, 32)
    assert (spec.mask_id, spec.pad_id, spec.bos_id) == (126336, 126081, None)
    assert spec.stop_ids == (126081, 126348)
    assert (spec.sampler.name, spec.max_new_tokens, spec.candidates) == ("low_confidence", 128, 4)
    assert (spec.denoiser.head_dim, spec.denoiser.intermediate_size) == (128, 12288)
    assert not spec.denoiser.qk_norm


@pytest.mark.parametrize(
    ("pack", "key_value_heads", "tied"), [("llada", 4, False), ("llada_gqa", 2, True)]
)
def test_golden_configs(goldens: Path, pack: str, key_value_heads: int, tied: bool):
    config = json.loads((goldens / pack / "config.json").read_text())
    spec = LLADA.read(config, {}, Overrides())
    assert spec.mask_id == config["mask_token_id"]
    assert spec.stop_ids == (config["eos_token_id"],)
    assert spec.max_position_embeddings == config["max_sequence_length"]
    assert spec.denoiser.num_key_value_heads == key_value_heads
    assert spec.denoiser.tie_word_embeddings is tied


@pytest.mark.parametrize(
    ("changes", "heads"),
    [
        ({"n_kv_heads": None}, 32),
        ({"n_kv_heads": None, "multi_query_attention": True}, 1),
        ({"n_kv_heads": None, "multi_query_attention": False}, 32),
        ({"n_kv_heads": 8}, 8),
        ({"n_kv_heads": 1, "multi_query_attention": True}, 1),
    ],
)
def test_key_value_heads(changes: dict[str, object], heads: int):
    assert read(**changes).denoiser.num_key_value_heads == heads


def test_sizes_that_follow_others():
    spec = read(mlp_hidden_size=None, embedding_size=None)
    assert spec.denoiser.intermediate_size == 4 * 4096
    assert spec.denoiser.vocab_size == 126464


def test_embedding_may_have_more_rows_than_the_vocabulary():
    spec = read(
        vocab_size=100, embedding_size=128, mask_token_id=127, eos_token_id=1, pad_token_id=1
    )
    assert spec.denoiser.vocab_size == 128
    assert spec.stop_ids == (1,)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alibi", True),
        ("rope", False),
        ("rope", None),
        ("rope_scaling", {"factor": 2}),
        ("layer_norm_type", "default"),
        ("layer_norm_type", None),
        ("layer_norm_with_affine", False),
        ("bias_for_layer_norm", True),
        ("include_bias", True),
        ("include_qkv_bias", True),
        ("scale_logits", True),
        ("attention_layer_norm", True),
        ("input_emb_norm", True),
        ("block_type", "sequential"),
        ("block_group_size", 2),
        ("activation_type", "gelu"),
        ("clip_qkv", 8.0),
    ],
)
def test_what_the_graph_does_not_implement(key: str, value: object):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is .*implements"):
        read(**{key: value})


@pytest.mark.parametrize(
    "key",
    [
        "d_model",
        "n_heads",
        "n_layers",
        "vocab_size",
        "max_sequence_length",
        "rms_norm_eps",
        "rope_theta",
        "weight_tying",
        "mask_token_id",
    ],
)
def test_missing_keys(key: str):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is missing"):
        read(**{key: None})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_heads": 3}, "'d_model' 4096 is not a multiple of 'n_heads' 3"),
        ({"n_heads": 4096, "n_kv_heads": 1}, "head size 1 is odd"),
        ({"n_kv_heads": 5}, "32 attention heads cannot share 5"),
        ({"n_kv_heads": 8, "multi_query_attention": True}, "'multi_query_attention' means 1"),
        ({"embedding_size": 100}, "'embedding_size' 100 is below 'vocab_size' 126464"),
        ({"n_layers": 10**9}, "'n_layers' is 1000000000"),
        ({"mask_token_id": 126464}, "'mask_token_id' is 126464"),
        ({"mask_token_id": 126081}, "mask and stop token at once"),
        ({"mlp_hidden_size": None, "mlp_ratio": None}, "'mlp_ratio' is missing"),
    ],
)
def test_sizes_that_do_not_fit(changes: dict[str, object], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)


def test_overrides_apply():
    spec = LLADA.read(
        {**RELEASED, "mask_token_id": None}, {}, Overrides(mask_id=5, block_length=64)
    )
    assert (spec.mask_id, spec.block_length) == (5, 64)
