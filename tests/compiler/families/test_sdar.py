import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides
from dlmc.families.sdar import SDAR
from dlmc_runtime.errors import CheckpointError

RELEASED: dict[str, Any] = {
    "architectures": ["SDARForCausalLM"],
    "attention_bias": False,
    "block_size": 4,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "mask_token_id": 151669,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


def read(generation: dict[str, Any] | None = None, /, **changes: Any) -> FamilySpec:
    return SDAR.read({**RELEASED, **changes}, generation or {}, Overrides())


def test_released_shape():
    spec = read({"eos_token_id": [151645, 151643], **SAMPLING})
    assert (spec.regime, spec.shift, spec.block_length) == ("block", 0, 4)
    assert (spec.mask_id, spec.pad_id, spec.bos_id) == (151669, 151643, 151643)
    assert spec.stop_ids == (151645, 151643)
    assert spec.candidates == 32
    assert (spec.denoiser.head_dim, spec.denoiser.qk_norm) == (128, True)


def test_sampling_is_not_the_default():
    sampler = read(SAMPLING).sampler
    assert sampler.name == "low_confidence_dynamic"
    assert sampler.parameters == {"threshold": 0.85}


def test_golden_config(goldens: Path):
    pack = goldens / "sdar"
    config = json.loads((pack / "config.json").read_text())
    generation = json.loads((pack / "generation_config.json").read_text())
    spec = SDAR.read(config, generation, Overrides())
    assert spec.block_length == config["block_size"]
    assert spec.stop_ids == tuple(generation["eos_token_id"])
    assert spec.denoiser.head_dim == config["head_dim"]


def test_defaults_of_the_reference():
    spec = read(block_size=None, head_dim=None, tie_word_embeddings=None, num_key_value_heads=None)
    assert spec.block_length == 4
    assert spec.denoiser.head_dim == 128
    assert spec.denoiser.num_key_value_heads == 32
    assert not spec.denoiser.tie_word_embeddings


def test_rope_as_transformers_5_writes_it():
    nested = {"rope_theta": 10000.0, "rope_type": "default"}
    spec = read(rope_theta=None, rope_parameters=nested)
    assert spec.denoiser.rope_theta == 10000.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("use_sliding_window", True),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
    ],
)
def test_what_the_graph_does_not_implement(key: str, value: Any):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is .*implements"):
        read(**{key: value})


def test_scaled_rope_in_the_nested_form():
    with pytest.raises(CheckpointError, match=r"rope_parameters: 'rope_type' is \"yarn\""):
        read(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6})
    with pytest.raises(CheckpointError, match="'rope_parameters' is not an object"):
        read(rope_parameters=[1])


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "mask_token_id",
    ],
)
def test_missing_keys(key: str):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is missing"):
        read(**{key: None})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_heads": 5}, "32 attention heads cannot share 5"),
        ({"head_dim": 127}, "head size 127 is odd"),
        ({"head_dim": 1 << 24}, "too many"),
        ({"block_size": 32769}, "'block_size' is 32769"),
        ({"block_size": 0}, "'block_size' is 0"),
    ],
)
def test_sizes_that_do_not_fit(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)


def test_ids_of_the_generation_config_are_checked():
    with pytest.raises(CheckpointError, match=r"generation_config\.json: 'eos_token_id'"):
        read({"eos_token_id": [151936]})
