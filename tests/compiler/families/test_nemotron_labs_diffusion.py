import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlmc.denoiser.config import QueryScale, Yarn
from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.nemotron_labs_diffusion import NEMOTRON_LABS_DIFFUSION
from dlmc_runtime.errors import CheckpointError

ROPE: dict[str, Any] = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
}
RELEASED: dict[str, Any] = {
    "architectures": ["NemotronLabsDiffusionModel"],
    "attention_bias": False,
    "block_size": 32,
    "bos_token_id": 1,
    "dlm_paradigm": "bidirectional",
    "eos_token_id": 11,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mask_token_id": 100,
    "max_position_embeddings": 262144,
    "mlp_bias": False,
    "model_type": "nemotron_labs_diffusion",
    "num_attention_heads": 32,
    "num_hidden_layers": 34,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_parameters": ROPE,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 131072,
}


def read(**changes: Any) -> FamilySpec:
    return NEMOTRON_LABS_DIFFUSION.read({**RELEASED, **changes}, {}, Overrides())


def test_released_shape():
    assert detect(RELEASED) is NEMOTRON_LABS_DIFFUSION
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length, spec.seeded) == ("context", 0, 32, True)
    assert (spec.aligned_to, spec.last_block) == ("answer", "cut")
    assert (spec.mask_id, spec.stop_ids, spec.bos_id) == (100, (11,), 1)
    assert spec.denoiser.yarn == Yarn(16.0, 16384, 32.0, 1.0, 1.0)
    assert spec.denoiser.query_scale == QueryScale(0.1, 16384)
    assert spec.denoiser.adapter_rank == 0


def test_golden_config(goldens: Path):
    config = json.loads((goldens / "nemotron_labs_diffusion" / "config.json").read_text())
    spec = NEMOTRON_LABS_DIFFUSION.read(config, {}, Overrides())
    assert spec.denoiser.query_scale == QueryScale(0.1, 16)


def test_weights_lie_under_the_encoder():
    spec = read()
    names = NEMOTRON_LABS_DIFFUSION.weight_names(spec)
    assert names["norm.weight"] == "encoder.norm.weight"
    assert names["lm_head.weight"] == "diffusion_head.weight"
    assert not [name for name in names if "adapter" in name]
    adapted = replace(spec, denoiser=replace(spec.denoiser, adapter_rank=128))
    more = NEMOTRON_LABS_DIFFUSION.weight_names(adapted)
    assert (
        more["layers.3.self_attn.o_adapter.b.weight"]
        == "base_model.model.encoder.layers.3.self_attn.o_proj.lora_B.weight"
    )
    assert len(more) == len(names) + 2 * 34


def test_rope_without_stretching():
    spec = read(rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    assert (spec.denoiser.yarn, spec.denoiser.query_scale) == (None, None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rope_parameters": {**ROPE, "rope_type": "linear"}}, "'rope_type' is \"linear\""),
        ({"rope_parameters": {**ROPE, "factor": 0}}, "'factor' is 0"),
        ({"rope_parameters": [1]}, "'rope_parameters' is not an object"),
        ({"rope_parameters": None}, "'rope_theta' is missing"),
        (
            {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn"}},
            "'rope_scaling' is",
        ),
        ({"sliding_window": 4096}, "'sliding_window' is 4096"),
        ({"block_size": 1 << 20}, "'block_size' is"),
        ({"mask_token_id": None}, "'mask_token_id' is missing"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)


def test_a_vision_model_is_another_network():
    with pytest.raises(CheckpointError, match="has 'vision_config'"):
        detect({**RELEASED, "vision_config": {}})
