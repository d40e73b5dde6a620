"""Nemotron-Labs-Diffusion (NVIDIA): a Ministral 3 network, context-causal.

A block sees itself both ways and what is stored before it; a finished block is stored by a causal
forward, whose last logit gives the first token of the next block. Logits are not shifted where a
block is denoised. ``linear_spec_lora`` is an adapter of the output projections for drafts.
Reference code: the ``modeling_nemotron_labs_diffusion.py`` shipped with
nvidia/Nemotron-Labs-Diffusion-8B, and Blaizzy/mlx-vlm, ``models/nemotron_labs_diffusion``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlmc.denoiser.config import DenoiserConfig
from dlmc.families.decoder import (
    NO_BIAS,
    REQUIRED,
    SIZE_KEYS_WITH_HEAD_DIM,
    SUPPORTED,
    decoder_spec,
    positions_of,
    read_decoder,
    read_query_scale,
    read_yarn,
    rope_keys,
    tensor_names,
)
from dlmc.families.keys import Keys
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

_ROPES = ("yarn", "default", None)
_LAYER = "layers.{i}.self_attn."
_ADAPTER = f"base_model.model.encoder.{_LAYER}o_proj.lora_"


def _denoiser(keys: Keys) -> DenoiserConfig:
    rope = rope_keys(keys, types=_ROPES)
    yarn = read_yarn(rope) if rope.values.get("rope_type") == "yarn" else None
    if yarn is None:
        keys.require({"rope_scaling": (None,)})
    return replace(
        read_decoder(keys, rope_types=_ROPES), yarn=yarn, query_scale=read_query_scale(rope)
    )


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require({**SUPPORTED, **NO_BIAS, "sliding_window": (None,)})
    return decoder_spec(
        NEMOTRON_LABS_DIFFUSION,
        keys,
        generation_config,
        overrides,
        _denoiser(keys),
        regime="context",
        block_length=keys.integer("block_size", default=32, most=positions_of(keys)),
        sampler=SamplerSpec(name="low_confidence", parameters={"threshold": 0.9}),
        aligned_to="answer",
        last_block="cut",
        seeded=True,
    )


NEMOTRON_LABS_DIFFUSION = Family(
    name="nemotron_labs_diffusion",
    architectures=("NemotronLabsDiffusionModel",),
    required=REQUIRED,
    absent=("num_experts", "vision_config"),
    read=_read,
    weights=tensor_names("encoder.", "diffusion_head.weight")
    | {
        f"{_LAYER}o_adapter.a.weight": f"{_ADAPTER}A.weight",
        f"{_LAYER}o_adapter.b.weight": f"{_ADAPTER}B.weight",
    },
    size_keys=SIZE_KEYS_WITH_HEAD_DIM,
)
