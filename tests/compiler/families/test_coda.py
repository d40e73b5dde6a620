from typing import Any

import pytest

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.coda import CODA
from dlmc_runtime.errors import CheckpointError

RELEASED: dict[str, Any] = {
    "architectures": ["CoDALanguageModel"],
    "attention_bias": False,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mask_token_id": 151669,
    "max_position_embeddings": 40960,
    "model_type": "CoDA",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
}


def read(**changes: Any) -> FamilySpec:
    return CODA.read({**RELEASED, **changes}, {}, Overrides())


def test_released_shape():
    assert detect(RELEASED) is CODA
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length) == ("full", 1, 40960)
    assert (spec.mask_id, spec.pad_id, spec.stop_ids) == (151669, 151643, (151645,))
    assert (spec.denoiser.qk_norm, spec.denoiser.qkv_bias) == (True, False)


@pytest.mark.parametrize("stated", [True, False, None])
def test_the_head_is_never_tied(stated: bool | None):
    assert not read(tie_word_embeddings=stated).denoiser.tie_word_embeddings


@pytest.mark.parametrize(
    ("key", "value"),
    [("rope_scaling", {"factor": 2}), ("attention_bias", True), ("hidden_act", "relu")],
)
def test_what_the_graph_does_not_implement(key: str, value: Any):
    with pytest.raises(CheckpointError, match=rf"config\.json: '{key}' is .*implements"):
        read(**{key: value})


def test_missing_mask():
    with pytest.raises(CheckpointError, match="'mask_token_id' is missing"):
        read(mask_token_id=None)
