"""SDAR (arXiv 2510.06303) and TraDo: a Qwen3 network, block-causal.

A block of ``block_size`` positions sees the committed blocks and itself, logits not shifted.
Reference code: JetAstra/SDAR, ``generate.py`` and ``modeling_sdar.py``.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.denoiser.config import DenoiserConfig
from dlmc.families.keys import MOST_LAYERS, Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc.families.tokens import read_token_ids
from dlmc_runtime.manifest import SamplerSpec

_SUPPORTED: Supported = {
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "rope_scaling": (None,),
}
_HEAD_DIM = 128  # what the reference assumes where the key is absent


def _rope(config: Keys) -> Keys:
    """Return the keys that hold ``rope_theta``: transformers 5 writes them one level deeper."""
    nested = config.values.get("rope_parameters")
    if nested is None:
        return config
    if not isinstance(nested, dict):
        config.refuse("'rope_parameters' is not an object", "copy it from the original checkpoint")
    rope = Keys(nested, f"{config.file}, rope_parameters")
    rope.require({"rope_type": ("default", None)})
    return rope


def _denoiser(config: Keys) -> DenoiserConfig:
    heads = config.integer("num_attention_heads")
    key_value_heads = config.integer("num_key_value_heads", default=heads)
    head_dim = config.integer("head_dim", default=_HEAD_DIM)
    config.check_heads(heads, key_value_heads, head_dim)
    return DenoiserConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=config.integer("num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps"),
        rope_theta=_rope(config).number("rope_theta"),
        qk_norm=True,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
    )


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require(_SUPPORTED)
    denoiser = _denoiser(keys)
    generation = Keys(generation_config, "generation_config.json")
    tokens = read_token_ids(keys, generation, denoiser.vocab_size, overrides)
    positions = keys.integer("max_position_embeddings")
    return overrides.apply(
        FamilySpec(
            family=SDAR.name,
            architecture=SDAR.architectures[0],
            denoiser=denoiser,
            regime="block",
            block_length=keys.integer("block_size", default=4, most=positions),
            shift=0,
            mask_id=tokens.mask,
            stop_ids=tokens.stop,
            pad_id=tokens.pad,
            bos_id=tokens.bos,
            max_position_embeddings=positions,
            # The released generation_config.json samples (0.6, top-k 20, top-p 0.95); without
            # being asked to, dlmc does not.
            sampler=SamplerSpec(name="low_confidence_dynamic", parameters={"threshold": 0.85}),
            max_new_tokens=min(128, positions),
            # Enough for the released top-k of 20, after the ids that a user may suppress.
            candidates=min(32, denoiser.vocab_size),
        )
    )


_LAYER = "layers.{i}."
_OWN_NAMES = (
    "embed_tokens.weight",
    _LAYER + "input_layernorm.weight",
    _LAYER + "self_attn.q_proj.weight",
    _LAYER + "self_attn.k_proj.weight",
    _LAYER + "self_attn.v_proj.weight",
    _LAYER + "self_attn.o_proj.weight",
    _LAYER + "self_attn.q_norm.weight",
    _LAYER + "self_attn.k_norm.weight",
    _LAYER + "post_attention_layernorm.weight",
    _LAYER + "mlp.gate_proj.weight",
    _LAYER + "mlp.up_proj.weight",
    _LAYER + "mlp.down_proj.weight",
    "norm.weight",
)

SDAR = Family(
    name="sdar",
    architectures=("SDARForCausalLM",),
    required=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    absent=("num_experts",),
    read=_read,
    weights={name: f"model.{name}" for name in _OWN_NAMES} | {"lm_head.weight": "lm_head.weight"},
    size_keys={
        "layers": ("num_hidden_layers",),
        "hidden": ("hidden_size",),
        "intermediate": ("intermediate_size",),
        "heads": ("num_attention_heads",),
        "kv_heads": ("num_key_value_heads",),
        "head_dim": ("head_dim",),
        "vocab": ("vocab_size",),
        "positions": ("max_position_embeddings",),
    },
)
