"""What families share that name things as Llama, Qwen2 and Qwen3 do: keys, sizes and tensors."""

import math
from collections.abc import Mapping
from typing import Any, Literal

from dlmc.denoiser.config import DenoiserConfig, QueryScale, Yarn
from dlmc.families.keys import MOST_LAYERS, Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides, Shift
from dlmc.families.tokens import read_token_ids
from dlmc_runtime.manifest import Regime, SamplerSpec

REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads")

SIZE_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",),
    "hidden": ("hidden_size",),
    "intermediate": ("intermediate_size",),
    "heads": ("num_attention_heads",),
    "kv_heads": ("num_key_value_heads",),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings",),
}
SIZE_KEYS_WITH_HEAD_DIM = SIZE_KEYS | {"head_dim": ("head_dim",)}

SUPPORTED: Supported = {
    "hidden_act": ("silu", None),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
    "partial_rotary_factor": (1, 1.0, None),
}
NO_BIAS: Supported = {"attention_bias": (False, None)}
PLAIN_ROPE: Supported = {"rope_scaling": (None,)}

_LAYER = "layers.{i}."
_NAMES = (
    "embed_tokens.weight",
    _LAYER + "input_layernorm.weight",
    *(f"{_LAYER}self_attn.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")),
    _LAYER + "self_attn.o_proj.weight",
    _LAYER + "self_attn.q_norm.weight",
    _LAYER + "self_attn.k_norm.weight",
    _LAYER + "post_attention_layernorm.weight",
    _LAYER + "mlp.gate_proj.weight",
    _LAYER + "mlp.up_proj.weight",
    _LAYER + "mlp.down_proj.weight",
    "norm.weight",
)


def tensor_names(stem: str = "model.", head: str = "lm_head.weight") -> dict[str, str]:
    """Return the tensor of every parameter that a decoder may have, by parameter.

    `Family.weight_names` leaves out those that a checkpoint's network does not have.
    """
    return {name: stem + name for name in _NAMES} | {"lm_head.weight": head}


def decoder_spec(
    family: Family,
    config: Keys,
    generation_config: Mapping[str, Any],
    overrides: Overrides,
    denoiser: DenoiserConfig,
    *,
    regime: Regime,
    sampler: SamplerSpec,
    block_length: int | None = None,
    shift: Shift = 0,
    candidates: int = 4,
    default_mask: int | None = None,
    extra_stop: int | None = None,
    aligned_to: Literal["sequence", "answer"] = "sequence",
    last_block: Literal["whole", "cut"] = "whole",
    seeded: bool = False,
    masked: bool = True,
    positions: int | None = None,
    max_new_tokens: int = 128,
) -> FamilySpec:
    """Return the spec of a decoder: what the files say, what the family adds, then overrides.

    Args:
        family: who reads.
        config: ``config.json``.
        generation_config: ``generation_config.json``.
        overrides: what the user states.
        denoiser: the network.
        regime: as in `FamilySpec`.
        sampler: as in `FamilySpec`.
        block_length: as in `FamilySpec`; None denoises the whole answer at once.
        shift: as in `FamilySpec`.
        candidates: as in `FamilySpec`, if the vocabulary has as many.
        default_mask: mask id where no file states one.
        extra_stop: a stop id that the files leave out.
        aligned_to: as in `FamilySpec`.
        last_block: as in `FamilySpec`.
        seeded: as in `FamilySpec`.
        masked: whether undecided positions hold a mask; without it they hold random tokens.
        positions: longest sequence; None reads it.
        max_new_tokens: as in `FamilySpec`, if a sequence holds as many.

    Raises:
        CheckpointError: a key is missing, or its value cannot be.
        UsageError: an override does not fit.
    """
    generation = Keys(generation_config, "generation_config.json")
    tokens = read_token_ids(
        config, generation, denoiser.vocab_size, overrides, default_mask, masked=masked
    )
    positions = positions_of(config) if positions is None else positions
    extra = () if extra_stop is None else (extra_stop,)
    return overrides.apply(
        FamilySpec(
            family=family.name,
            architecture=config.architecture(family.architectures),
            denoiser=denoiser,
            regime=regime,
            block_length=positions if block_length is None else min(block_length, positions),
            shift=shift,
            mask_id=tokens.mask,
            stop_ids=tuple(dict.fromkeys((*tokens.stop, *extra))),
            pad_id=tokens.pad,
            bos_id=tokens.bos,
            max_position_embeddings=positions,
            sampler=sampler,
            max_new_tokens=min(max_new_tokens, positions),
            candidates=min(candidates, denoiser.vocab_size),
            aligned_to=aligned_to,
            last_block=last_block,
            seeded=seeded,
        )
    )


def positions_of(config: Keys) -> int:
    """Return how many positions a sequence may have."""
    return config.integer("max_position_embeddings")


def read_decoder(
    config: Keys,
    *,
    qk_norm: bool = False,
    qkv_bias: bool = False,
    head_dim: int | None = None,
    rope_types: tuple[str | None, ...] = ("default", None),
    intermediate: str = "intermediate_size",
    partial: bool = False,
) -> DenoiserConfig:
    """Read the sizes of a decoder, and its rotary embedding.

    Args:
        config: ``config.json``.
        qk_norm: as in `DenoiserConfig`.
        qkv_bias: as in `DenoiserConfig`.
        head_dim: what the reference assumes where the key is absent; None divides the hidden size
            among the heads.
        rope_types: as `rope_keys` takes them.
        intermediate: the key of the width of feed-forward layers.
        partial: as `rope_keys` takes it.

    Raises:
        CheckpointError: a key is missing, or its value cannot be.
    """
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    key_value_heads = config.integer("num_key_value_heads", default=heads)
    if head_dim is None and not config.has("head_dim") and hidden % heads:
        config.refuse(
            f"'hidden_size' {hidden} is not a multiple of 'num_attention_heads' {heads}",
            "correct one, or state 'head_dim'",
        )
    head_dim = config.integer("head_dim", default=head_dim or hidden // heads)
    config.check_heads(heads, key_value_heads, head_dim)
    _check_layers(config)
    rope = rope_keys(config, types=rope_types, partial=partial)
    return DenoiserConfig(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer(intermediate),
        num_hidden_layers=config.integer("num_hidden_layers", most=MOST_LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps"),
        rope_theta=rope.number("rope_theta"),
        qk_norm=qk_norm,
        qkv_bias=qkv_bias,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=False),
    )


def _check_layers(config: Keys) -> None:
    kinds = config.values.get("layer_types")
    if kinds is None:
        return
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        config.refuse(
            "'layer_types' is not a list of full_attention",
            "this version of dlmc implements no other layers here",
        )


def rope_keys(
    config: Keys, *, types: tuple[str | None, ...] = ("default", None), partial: bool = False
) -> Keys:
    """Return the keys that hold ``rope_theta``: transformers 5 writes them one level deeper.

    Args:
        config: ``config.json``.
        types: the types of rotary embedding that the caller implements.
        partial: whether it implements that only a part of a head is rotated.

    Raises:
        CheckpointError: they are no object, or of a type other than ``types``.
    """
    nested = config.values.get("rope_parameters")
    if nested is None:
        return config
    if not isinstance(nested, dict):
        config.refuse("'rope_parameters' is not an object", "copy it from the original checkpoint")
    rope = Keys(nested, f"{config.file}, rope_parameters")
    rope.require({"rope_type": types})
    if not partial:
        rope.require({"partial_rotary_factor": (1, 1.0, None)})
    return rope


_EXTREME = 1e6  # far beyond what a network has been trained with, and within float32


def read_yarn(rope: Keys) -> Yarn:
    """Read YaRN's keys; defaults and the attention factor are those of transformers.

    Raises:
        CheckpointError: a key is missing, or its value cannot be.
    """
    rope.require({"truncate": (True, None)})
    factor = rope.number("factor", 1.0, _EXTREME)
    fast = rope.number("beta_fast", 1 / _EXTREME, _EXTREME) if rope.has("beta_fast") else 32.0
    slow = rope.number("beta_slow", 1 / _EXTREME, _EXTREME) if rope.has("beta_slow") else 1.0
    if rope.number("rope_theta") <= 1:
        rope.refuse("'rope_theta' is not above 1", "YaRN needs frequencies that fall")
    return Yarn(
        factor=factor,
        original_positions=rope.integer("original_max_position_embeddings"),
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=_attention_factor(rope, factor),
    )


def _attention_factor(rope: Keys, factor: float) -> float:
    if rope.has("attention_factor"):
        return rope.number("attention_factor", 1 / _EXTREME, _EXTREME)

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0

    # Both are needed, and 0 counts as none.
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        scales = (rope.number(key, most=_EXTREME) for key in ("mscale", "mscale_all_dim"))
        return magnitude(next(scales)) / magnitude(next(scales))
    return magnitude(1.0)


def read_query_scale(rope: Keys) -> QueryScale | None:
    """Read how queries grow with their position; None where they do not."""
    if not rope.values.get("llama_4_scaling_beta"):
        return None
    return QueryScale(
        beta=rope.number("llama_4_scaling_beta"),
        positions=rope.integer("original_max_position_embeddings"),
    )
