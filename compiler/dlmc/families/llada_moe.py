"""LLaDA-MoE (arXiv 2509.24389): a network with experts, bidirectional, decoded as LLaDA is.

Logits are not shifted. A token uses the experts with its best scores, which are not scaled to a
sum of one. Its ``model_type`` is that of LLaDA, and is not asked. Reference code: the
``modeling_lladamoe.py`` shipped with inclusionAI/LLaDA-MoE-7B-A1B-Instruct.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlmc.denoiser.config import DENSE, SPARSE, DenoiserConfig, Moe
from dlmc.families.decoder import NO_BIAS, PLAIN_ROPE, SUPPORTED, decoder_spec, read_decoder
from dlmc.families.experts import (
    SPARSE_REQUIRED,
    SPARSE_SIZE_KEYS,
    STACKED,
    choices,
    sparse_tensor_names,
)
from dlmc.families.keys import Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

# ``norm_topk_prob`` is not among them: the reference ignores it.
_SUPPORTED: Supported = {
    **SUPPORTED,
    **NO_BIAS,
    **PLAIN_ROPE,
    "clip_qkv": (None,),
    "qk_layernorm": (True,),
    "moe_router_score_function": ("softmax", None),
    "moe_router_enable_expert_bias": (False, None),
    "routed_scaling_factor": (1, 1.0, None),
    "router_num_group": (None,),
    "router_topk_group": (None,),
    "shared_expert_intermediate_size": (None,),
}

# What no file of the released checkpoints states: `generate` takes the mask as an argument.
_RELEASED_VOCABULARY, _RELEASED_MASK = 157184, 156895


def _kinds(keys: Keys, layers: int) -> tuple[str, ...]:
    """Read which layers have experts: a 0 or a 1 each."""
    stated = keys.values.get("moe_layer_freq")
    stated = [1] * layers if stated is None else stated
    if (
        not isinstance(stated, list)
        or len(stated) != layers
        or any(n not in (0, 1) for n in stated)
    ):
        keys.refuse(
            f"'moe_layer_freq' is no list of 0 or 1 for each of {layers} layers", "correct it"
        )
    return tuple(SPARSE if has else DENSE for has in stated)


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require(_SUPPORTED)
    plain = read_decoder(keys, qk_norm=True, intermediate="dense_intermediate_size")
    experts, top_k = choices(keys)
    moe = Moe(experts, top_k, keys.integer("expert_intermediate_size"), normalised=False)
    released = plain.vocab_size == _RELEASED_VOCABULARY
    return decoder_spec(
        LLADA_MOE,
        keys,
        generation_config,
        overrides,
        replace(plain, kinds=_kinds(keys, plain.num_hidden_layers), moe=moe),
        regime="full",
        block_length=32,
        sampler=SamplerSpec(name="low_confidence"),
        default_mask=_RELEASED_MASK if released else None,
    )


def _fit(config: dict[str, Any], _: DenoiserConfig) -> None:
    """Say of as many layers as a scaled ``config`` has which have experts."""
    stated = config.get("moe_layer_freq")
    if stated:
        layers = config["num_hidden_layers"]
        config["moe_layer_freq"] = [stated[i % len(stated)] for i in range(layers)]


LLADA_MOE = Family(
    name="llada_moe",
    # Some tools write the name of the dense family: its keys tell.
    architectures=("LLaDAMoEModelLM", "LLaDAMoEModel", "LLaDAModelLM"),
    required=(*SPARSE_REQUIRED, "expert_intermediate_size"),
    absent=(),
    read=_read,
    weights=sparse_tensor_names(),
    stacked=STACKED,
    size_keys=SPARSE_SIZE_KEYS
    | {
        "intermediate": ("dense_intermediate_size",),
        "expert_intermediate": ("expert_intermediate_size",),
    },
    fit=_fit,
    mask_text="<|mask|>",
)
