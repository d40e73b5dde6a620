"""LLaDA (arXiv 2502.09992) and LLaDA-1.5: a Llama network with OLMo's key names.

Bidirectional over the whole sequence, logits not shifted. Reference code: ML-GSAI/LLaDA and the
``modeling_llada.py`` shipped with GSAI-ML/LLaDA-8B-Instruct.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.denoiser.config import DenoiserConfig
from dlmc.families.keys import MOST_LAYERS, Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc.families.tokens import read_token_ids
from dlmc_runtime.manifest import SamplerSpec

_SUPPORTED: Supported = {
    "block_type": ("llama",),
    "block_group_size": (1, None),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True, None),
    "bias_for_layer_norm": (False, None),
    "attention_layer_norm": (False, None),
    "input_emb_norm": (False, None),
    "include_bias": (False, None),
    "include_qkv_bias": (False, None),
    "clip_qkv": (None,),
    "alibi": (False, None),
    "rope": (True,),
    "rope_scaling": (None,),
    "scale_logits": (False, None),
}

# The released chat models end a turn with <|eot_id|>, which no key of their config names.
_RELEASED_VOCABULARY = 126464
_RELEASED_END_OF_TURN = 126348


def _key_value_heads(config: Keys, heads: int) -> int:
    """Count key-value heads; ``multi_query_attention`` is the older way to say one of them."""
    if not config.has("multi_query_attention"):
        return config.integer("n_kv_heads", default=heads)
    implied = 1 if config.flag("multi_query_attention") else heads
    stated = config.integer("n_kv_heads", default=implied)
    if stated != implied:
        config.refuse(
            f"'n_kv_heads' is {stated}, but 'multi_query_attention' means {implied}",
            "remove one of them",
        )
    return stated


def _denoiser(config: Keys) -> DenoiserConfig:
    hidden, heads = config.integer("d_model"), config.integer("n_heads")
    key_value_heads = _key_value_heads(config, heads)
    if hidden % heads:
        config.refuse(f"'d_model' {hidden} is not a multiple of 'n_heads' {heads}", "correct one")
    config.check_heads(heads, key_value_heads, hidden // heads)
    vocab = config.integer("vocab_size")
    rows = config.integer("embedding_size", default=vocab)
    if rows < vocab:
        config.refuse(f"'embedding_size' {rows} is below 'vocab_size' {vocab}", "correct one")
    intermediate = (
        config.integer("mlp_hidden_size")
        if config.has("mlp_hidden_size")
        else config.integer("mlp_ratio", most=1024) * hidden
    )
    return DenoiserConfig(
        vocab_size=rows,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=config.integer("n_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=hidden // heads,
        rms_norm_eps=config.number("rms_norm_eps"),
        rope_theta=config.number("rope_theta"),
        tie_word_embeddings=config.flag("weight_tying"),
    )


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require(_SUPPORTED)
    denoiser = _denoiser(keys)
    generation = Keys(generation_config, "generation_config.json")
    tokens = read_token_ids(keys, generation, denoiser.vocab_size, overrides)
    positions = keys.integer("max_sequence_length")
    stop = tokens.stop
    if denoiser.vocab_size == _RELEASED_VOCABULARY and _RELEASED_END_OF_TURN not in stop:
        stop = (*stop, _RELEASED_END_OF_TURN)
    return overrides.apply(
        FamilySpec(
            family=LLADA.name,
            architecture=LLADA.architectures[0],
            denoiser=denoiser,
            regime="full",
            block_length=min(32, positions),
            shift=0,
            mask_id=tokens.mask,
            stop_ids=stop,
            pad_id=tokens.pad,
            bos_id=tokens.bos,
            max_position_embeddings=positions,
            sampler=SamplerSpec(name="low_confidence"),
            max_new_tokens=min(128, positions),
            candidates=min(4, denoiser.vocab_size),
        )
    )


_BLOCK = "model.transformer.blocks.{i}."

LLADA = Family(
    name="llada",
    architectures=("LLaDAModelLM",),
    # LLaDA-MoE shares the model_type and sometimes the architecture, but has other keys.
    required=("d_model", "n_layers", "n_heads"),
    absent=("num_experts",),
    read=_read,
    weights={
        "embed_tokens.weight": "model.transformer.wte.weight",
        "layers.{i}.input_layernorm.weight": _BLOCK + "attn_norm.weight",
        "layers.{i}.self_attn.q_proj.weight": _BLOCK + "q_proj.weight",
        "layers.{i}.self_attn.k_proj.weight": _BLOCK + "k_proj.weight",
        "layers.{i}.self_attn.v_proj.weight": _BLOCK + "v_proj.weight",
        "layers.{i}.self_attn.o_proj.weight": _BLOCK + "attn_out.weight",
        "layers.{i}.post_attention_layernorm.weight": _BLOCK + "ff_norm.weight",
        "layers.{i}.mlp.gate_proj.weight": _BLOCK + "ff_proj.weight",
        "layers.{i}.mlp.up_proj.weight": _BLOCK + "up_proj.weight",
        "layers.{i}.mlp.down_proj.weight": _BLOCK + "ff_out.weight",
        "norm.weight": "model.transformer.ln_f.weight",
        "lm_head.weight": "model.transformer.ff_out.weight",
    },
    size_keys={
        "layers": ("n_layers",),
        "hidden": ("d_model",),
        "intermediate": ("mlp_hidden_size",),
        "heads": ("n_heads",),
        "kv_heads": ("n_kv_heads",),
        "vocab": ("vocab_size", "embedding_size"),
        "positions": ("max_sequence_length",),
    },
)
