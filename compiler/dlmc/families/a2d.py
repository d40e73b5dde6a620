"""Autoregressive models turned into diffusion models by dllm: Qwen2, Qwen3 and Llama networks.

``a2d`` are those trained with whole sequences masked (MDLM), bidirectional; ``a2d_bd3lm`` those
trained block by block (BD3LM), whose blocks are counted from the first position of the answer.
Logits are not shifted. Their configurations are the same, so the second must be asked for.
Reference code: ZHZisZZ/dllm, ``dllm/pipelines/a2d`` and ``dllm/core/samplers``.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.denoiser.config import DenoiserConfig
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
from dlmc_runtime.manifest import Regime, SamplerSpec

_QWEN3, _QWEN2, _LLAMA = "A2DQwen3LMHeadModel", "A2DQwen2LMHeadModel", "A2DLlamaLMHeadModel"
_BLOCK = 32
_QWEN3_HEAD_DIM = 128  # what transformers assumes where the key is absent


def _denoiser(keys: Keys, architecture: str) -> DenoiserConfig:
    if architecture == _QWEN2:
        keys.require({"attention_bias": (True, None)})
        return read_decoder(keys, qkv_bias=True)
    keys.require(NO_BIAS)
    if architecture == _QWEN3:
        return read_decoder(keys, qk_norm=True, head_dim=_QWEN3_HEAD_DIM)
    return read_decoder(keys)


def _read(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    overrides: Overrides,
    family: Family,
    regime: Regime,
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **PLAIN_ROPE})
    return decoder_spec(
        family,
        keys,
        generation_config,
        overrides,
        _denoiser(keys, keys.architecture(family.architectures)),
        regime=regime,
        block_length=_BLOCK,
        sampler=SamplerSpec(name="low_confidence", parameters={"schedule": "linear"}),
        aligned_to="sequence" if regime == "full" else "answer",
        last_block="cut",
    )


def _read_mdlm(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    return _read(config, generation_config, overrides, A2D, "full")


def _read_bd3lm(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    return _read(config, generation_config, overrides, A2D_BD3LM, "block")


A2D = Family(
    name="a2d",
    architectures=(_QWEN3, _QWEN2, _LLAMA),
    required=REQUIRED,
    absent=("num_experts",),
    read=_read_mdlm,
    weights=tensor_names(),
    size_keys=SIZE_KEYS,
    mask_text="<|mask|>",
)

A2D_BD3LM = Family(
    name="a2d_bd3lm",
    architectures=A2D.architectures,
    required=A2D.required,
    absent=A2D.absent,
    read=_read_bd3lm,
    weights=A2D.weights,
    size_keys=A2D.size_keys,
    mask_text=A2D.mask_text,
)
