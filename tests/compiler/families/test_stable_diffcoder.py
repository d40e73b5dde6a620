import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.stable_diffcoder import STABLE_DIFFCODER
from dlmc_runtime.errors import CheckpointError

RELEASED: dict[str, Any] = {
    "architectures": ["StableDiffcoderForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 155136,
}


def read(**changes: Any) -> FamilySpec:
    return STABLE_DIFFCODER.read({**RELEASED, **changes}, {}, Overrides())


def test_released_shape():
    assert detect(RELEASED) is STABLE_DIFFCODER
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length, spec.seeded) == ("block", 0, 4, False)
    assert (spec.aligned_to, spec.last_block) == ("sequence", "cut")
    assert (spec.mask_id, spec.stop_ids, spec.pad_id, spec.bos_id) == (5, (2,), 1, 0)
    assert not spec.denoiser.qkv_bias


def test_golden_config(goldens: Path):
    config = json.loads((goldens / "stable_diffcoder" / "config.json").read_text())
    assert detect(config) is STABLE_DIFFCODER
    assert STABLE_DIFFCODER.read(config, {}, Overrides()).mask_id == 5


def test_the_type_llama_is_not_asked():
    assert detect({**RELEASED, "model_type": "whatever"}) is STABLE_DIFFCODER
    with pytest.raises(CheckpointError, match="unknown architecture 'LlamaForCausalLM'"):
        detect({**RELEASED, "architectures": ["LlamaForCausalLM"]})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mlp_bias": True}, "'mlp_bias' is true"),
        ({"attention_bias": True}, "'attention_bias' is true"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "'rope_scaling' is"),
        ({"vocab_size": 5, "eos_token_id": 2}, "'mask_token_id' is missing"),
        ({"eos_token_id": 5}, "mask and stop token at once"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)
