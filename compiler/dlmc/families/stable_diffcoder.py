"""Stable-DiffCoder (arXiv 2601.15892): a Llama network, block-causal, logits not shifted.

A prompt that ends inside a block begins the first block of the answer, and the last block ends
with the answer. ``model_type`` says ``llama`` and is not asked. Reference code: the
``modeling_stable_diffcoder.py`` shipped with ByteDance-Seed/Stable-DiffCoder-8B-Instruct.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.families.decoder import (
    NO_BIAS,
    PLAIN_ROPE,
    REQUIRED,
    SIZE_KEYS,
    SUPPORTED,
    decoder_spec,
    read_decoder,
    tensor_names,
)
from dlmc.families.keys import Keys
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

# Defaults of the reference's `generate`, which no file of the released checkpoints states.
_MASK = 5
_BLOCK = 4


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **NO_BIAS, **PLAIN_ROPE})
    denoiser = read_decoder(keys)
    return decoder_spec(
        STABLE_DIFFCODER,
        keys,
        generation_config,
        overrides,
        denoiser,
        regime="block",
        block_length=_BLOCK,
        sampler=SamplerSpec(name="low_confidence"),  # one token a forward, as the model card does
        default_mask=_MASK if denoiser.vocab_size > _MASK else None,
        last_block="cut",
    )


STABLE_DIFFCODER = Family(
    name="stable_diffcoder",
    architectures=("StableDiffcoderForCausalLM",),
    required=REQUIRED,
    absent=("num_experts",),
    read=_read,
    weights=tensor_names(),
    size_keys=SIZE_KEYS,
)
