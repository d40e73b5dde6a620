import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.fast_dllm_v2 import FAST_DLLM_V2
from dlmc_runtime.errors import CheckpointError

RELEASED: dict[str, Any] = {
    "architectures": ["Fast_dLLM_QwenForCausalLM"],
    "bd_size": 32,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "model_type": "Fast_dLLM_Qwen",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def read(overrides: Overrides | None = None, /, **changes: Any) -> FamilySpec:
    return FAST_DLLM_V2.read({**RELEASED, **changes}, {}, overrides or Overrides())


def test_released_shape():
    assert detect(RELEASED) is FAST_DLLM_V2
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length, spec.seeded) == ("block", 1, 32, True)
    assert (spec.aligned_to, spec.last_block) == ("sequence", "whole")
    assert (spec.mask_id, spec.stop_ids) == (151665, (151645,))
    assert spec.denoiser.qkv_bias


def test_a_released_vocabulary_ends_turns():
    assert read(eos_token_id=151643).stop_ids == (151643, 151645)


def test_golden_config(goldens: Path):
    config = json.loads((goldens / "fast_dllm_v2" / "config.json").read_text())
    with pytest.raises(
        CheckpointError, match="'mask_token_id' is missing: state it with --mask-id"
    ):
        FAST_DLLM_V2.read(config, {}, Overrides())
    spec = FAST_DLLM_V2.read(config, {}, Overrides(mask_id=316))
    assert (spec.mask_id, spec.block_length, spec.stop_ids) == (316, 16, (313,))


def test_a_stated_mask_goes_before_the_released_one():
    assert read(mask_token_id=7).mask_id == 7
    assert read(Overrides(mask_id=8), mask_token_id=7).mask_id == 8


def test_plain_qwen2_keys_are_another_network():
    with pytest.raises(CheckpointError, match="no 'bd_size'"):
        detect({key: value for key, value in RELEASED.items() if key != "bd_size"})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bd_size": 0}, "'bd_size' is 0"),
        ({"bd_size": 40000}, "'bd_size' is 40000"),
        ({"layer_types": ["sliding_attention"]}, "'layer_types'"),
        ({"attention_bias": False}, "'attention_bias' is false"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)
