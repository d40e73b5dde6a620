from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.illada import ILLADA
from dlmc_runtime.errors import CheckpointError

RELEASED: dict[str, Any] = {
    "architectures": ["ILLaDAForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "layer_norm_eps": None,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "illada",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 155136,
}


def read(**changes: Any) -> FamilySpec:
    return ILLADA.read({**RELEASED, **changes}, {}, Overrides())


def test_released_shape():
    assert detect(RELEASED) is ILLADA
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length) == ("full", 0, 32)
    assert (spec.mask_id, spec.stop_ids) == (5, (2,))
    assert (spec.denoiser.num_key_value_heads, spec.denoiser.tie_word_embeddings) == (8, True)


def test_another_vocabulary_has_no_known_mask():
    with pytest.raises(CheckpointError, match="'mask_token_id' is missing"):
        read(vocab_size=300)


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "default"}, {"type": "default", "factor": 1.0}, {}]
)
def test_scaling_by_nothing(scaling: dict[str, Any]):
    assert read(rope_scaling=scaling).denoiser.rope_theta == 500000.0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layer_norm_eps": 1e-5}, "'layer_norm_eps' is 1e-05"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: 'rope_type' is \"linear\""),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling: 'factor' is 2.0"),
        ({"rope_scaling": 2}, "'rope_scaling' is not an object"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'rope_type' is \"yarn\""),
        ({"mlp_bias": True}, "'mlp_bias' is true"),
    ],
)
def test_what_the_graph_does_not_implement(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)
