"""SDAR (arXiv 2510.06303) and TraDo (arXiv 2509.06949): a Qwen3 network, block-causal.

``sdar`` are the dense ones, ``sdar_moe`` those with experts (Qwen3-30B-A3B). A block of
``block_size`` positions sees the committed blocks and itself, logits not shifted.
Reference code: JetAstra/SDAR, ``generate.py`` and ``modeling_sdar.py``.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.families.decoder import (
    NO_BIAS,
    PLAIN_ROPE,
    REQUIRED,
    SIZE_KEYS_WITH_HEAD_DIM,
    SUPPORTED,
    decoder_spec,
    positions_of,
    read_decoder,
    tensor_names,
)
from dlmc.families.experts import (
    SPARSE_REQUIRED,
    SPARSE_SIZE_KEYS_WITH_HEAD_DIM,
    STACKED,
    fit_qwen3_moe,
    qwen3_moe,
    sparse_tensor_names,
)
from dlmc.families.keys import Keys
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

_HEAD_DIM = 128  # what the reference assumes where the key is absent


def _read(
    family: Family,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    overrides: Overrides,
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **NO_BIAS, **PLAIN_ROPE})
    denoiser = read_decoder(keys, qk_norm=True, head_dim=_HEAD_DIM)
    return decoder_spec(
        family,
        keys,
        generation_config,
        overrides,
        qwen3_moe(keys, denoiser) if family.stacked else denoiser,
        regime="block",
        block_length=keys.integer("block_size", default=4, most=positions_of(keys)),
        # The released generation_config.json samples (0.6, top-k 20, top-p 0.95); without being
        # asked to, dlmc does not.
        sampler=SamplerSpec(name="low_confidence_dynamic", parameters={"threshold": 0.85}),
        # Enough for the released top-k of 20, after the ids that a user may suppress.
        candidates=32,
    )


def _read_dense(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    return _read(SDAR, config, generation_config, overrides)


def _read_moe(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    return _read(SDAR_MOE, config, generation_config, overrides)


SDAR = Family(
    name="sdar",
    architectures=("SDARForCausalLM",),
    required=REQUIRED,
    absent=("num_experts",),
    read=_read_dense,
    weights=tensor_names(),
    size_keys=SIZE_KEYS_WITH_HEAD_DIM,
)

SDAR_MOE = Family(
    name="sdar_moe",
    architectures=("SDARMoeForCausalLM",),
    required=(*SPARSE_REQUIRED, "moe_intermediate_size"),
    absent=(),
    read=_read_moe,
    weights=sparse_tensor_names(),
    stacked=STACKED,
    size_keys=SPARSE_SIZE_KEYS_WITH_HEAD_DIM,
    fit=fit_qwen3_moe,
)
