import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc.denoiser.config import QueryScale, Yarn
from dlmc.families.decoder import (
    read_decoder,
    read_query_scale,
    read_yarn,
    rope_keys,
    tensor_names,
)
from dlmc.families.keys import Keys
from dlmc_runtime.errors import CheckpointError

CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": 300,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
}


def keys(**changes: Any) -> Keys:
    return Keys({**CONFIG, **changes})


def test_sizes():
    denoiser = read_decoder(keys(tie_word_embeddings=True), qk_norm=True, qkv_bias=True)
    assert (denoiser.hidden_size, denoiser.intermediate_size) == (64, 96)
    assert (denoiser.num_attention_heads, denoiser.num_key_value_heads) == (4, 2)
    assert (denoiser.rope_theta, denoiser.rms_norm_eps) == (10000.0, 1e-6)
    assert denoiser.qk_norm
    assert denoiser.qkv_bias
    assert denoiser.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "assumed", "expected"),
    [({}, None, 16), ({}, 128, 128), ({"head_dim": 8}, None, 8), ({"head_dim": 8}, 128, 8)],
)
def test_head_size(changes: dict[str, Any], assumed: int | None, expected: int):
    assert read_decoder(keys(**changes), head_dim=assumed).head_dim == expected


def test_heads_that_do_not_split_the_hidden_size():
    odd = keys(hidden_size=66)
    with pytest.raises(CheckpointError, match="'hidden_size' 66 is not a multiple"):
        read_decoder(odd)
    assert read_decoder(odd, head_dim=16).head_dim == 16


@pytest.mark.parametrize("kinds", [["full_attention", "sliding_attention"], "full_attention", [1]])
def test_layers_that_are_not_full(kinds: Any):
    with pytest.raises(CheckpointError, match="'layer_types' is not a list of full_attention"):
        read_decoder(keys(layer_types=kinds))


def test_layers_that_are_full():
    assert read_decoder(keys(layer_types=["full_attention"] * 2)).num_hidden_layers == 2


def test_rope_of_transformers_5():
    nested = keys(rope_theta=None, rope_parameters={"rope_theta": 5.0, "rope_type": "default"})
    assert rope_keys(nested).number("rope_theta") == 5.0
    assert rope_keys(keys()).number("rope_theta") == 10000.0


@pytest.mark.parametrize(
    ("nested", "sentence"),
    [
        ([1], "'rope_parameters' is not an object"),
        (YARN, "'rope_type' is \"yarn\""),
        ({"rope_theta": 1.0, "partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5"),
    ],
)
def test_rope_that_is_not_implemented(nested: Any, sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        rope_keys(keys(rope_parameters=nested))


def test_yarn_defaults():
    assert read_yarn(Keys(YARN)) == Yarn(16.0, 16384, 32.0, 1.0, 0.1 * math.log(16) + 1)


@given(scale=st.floats(0.1, 10), factor=st.floats(1, 100))
def test_equal_magnitudes_cancel(scale: float, factor: float):
    stated = {**YARN, "factor": factor, "mscale": scale, "mscale_all_dim": scale}
    assert read_yarn(Keys(stated)).attention_factor == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 2.0}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 0}, 0.1 * math.log(16) + 1),
        (
            {"mscale": 0.5, "mscale_all_dim": 1.0},
            (0.05 * math.log(16) + 1) / (0.1 * math.log(16) + 1),
        ),
    ],
)
def test_attention_factor(changes: dict[str, Any], expected: float):
    assert read_yarn(Keys({**YARN, **changes})).attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"factor": 0.5}, "'factor' is 0.5: it must be from 1 to"),
        ({"factor": 1e9}, "'factor' is 1000000000.0: it must be from 1 to"),
        ({"beta_slow": 1e-9}, "'beta_slow' is 1e-09: it must be from"),
        ({"attention_factor": 1e30}, "'attention_factor' is 1e\\+30: it must be from"),
        ({"mscale": 1e30, "mscale_all_dim": 1.0}, "'mscale' is 1e\\+30: it must be from"),
        ({"factor": None}, "'factor' is missing"),
        ({"rope_theta": 1}, "'rope_theta' is not above 1"),
        ({"truncate": False}, "'truncate' is false"),
        ({"original_max_position_embeddings": None}, "'original_max_position_embeddings'"),
        ({"beta_fast": -1}, "'beta_fast' is -1"),
    ],
)
def test_yarn_that_cannot_be(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read_yarn(Keys({**YARN, **changes}))


def test_query_scale():
    assert read_query_scale(Keys({**YARN, "llama_4_scaling_beta": 0.1})) == QueryScale(0.1, 16384)
    assert read_query_scale(Keys(YARN)) is None
    assert read_query_scale(Keys({**YARN, "llama_4_scaling_beta": 0})) is None


def test_tensor_names():
    names = tensor_names("encoder.", "head.weight")
    assert names["embed_tokens.weight"] == "encoder.embed_tokens.weight"
    assert names["layers.{i}.self_attn.q_proj.bias"] == "encoder.layers.{i}.self_attn.q_proj.bias"
    assert names["lm_head.weight"] == "head.weight"
