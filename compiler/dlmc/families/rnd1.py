"""RND1 (Radical Numerics): Qwen3-30B-A3B turned into a bidirectional model, decoded as Dream is.

Logits are shifted. Reference code: RadicalNumerics/RND1, ``rnd/modeling_rnd.py`` and
``rnd/sampling.py``.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.families.decoder import NO_BIAS, PLAIN_ROPE, SUPPORTED, decoder_spec, read_decoder
from dlmc.families.experts import (
    SPARSE_REQUIRED,
    SPARSE_SIZE_KEYS_WITH_HEAD_DIM,
    STACKED,
    fit_qwen3_moe,
    qwen3_moe,
    sparse_tensor_names,
)
from dlmc.families.keys import Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

_HEAD_DIM = 128  # what the reference assumes where the key is absent
_MASK = 151669

# Released files may say false where others say null.
_ROPE: Supported = {"rope_scaling": (*PLAIN_ROPE["rope_scaling"], False)}


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **NO_BIAS, **_ROPE})
    denoiser = qwen3_moe(keys, read_decoder(keys, qk_norm=True, head_dim=_HEAD_DIM))
    return decoder_spec(
        RND1,
        keys,
        generation_config,
        overrides,
        denoiser,
        regime="full",
        sampler=SamplerSpec(name="entropy", parameters={"schedule": "rnd1"}),
        shift=1,
        candidates=32,
        default_mask=_MASK if denoiser.vocab_size > _MASK else None,
    )


RND1 = Family(
    name="rnd1",
    architectures=("RND1LM",),
    required=(*SPARSE_REQUIRED, "moe_intermediate_size"),
    absent=(),
    read=_read,
    weights=sparse_tensor_names(),
    stacked=STACKED,
    size_keys=SPARSE_SIZE_KEYS_WITH_HEAD_DIM,
    fit=fit_qwen3_moe,
)
