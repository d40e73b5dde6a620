"""LLaDA2.0, 2.1 and 2.2 (arXiv 2512.15745): a Bailing-MoE-V2 network, block-causal.

A block of 32 positions sees the committed blocks and itself, logits not shifted. A token chooses
its experts by the sigmoid of its scores, among those of its best groups; in 2.2, which states an
``expert_capacity``, among those that its block has chosen together. Reference code: the
``modeling_llada2_moe.py`` shipped with inclusionAI/LLaDA2.0-mini.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlmc.denoiser.config import DENSE, SPARSE, DenoiserConfig, Moe
from dlmc.families.decoder import PLAIN_ROPE, decoder_spec, positions_of, read_decoder
from dlmc.families.experts import (
    SPARSE_REQUIRED,
    SPARSE_SIZE_KEYS_WITH_HEAD_DIM,
    STACKED,
    choices,
)
from dlmc.families.keys import Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import SamplerSpec

_SUPPORTED: Supported = {
    **PLAIN_ROPE,
    "hidden_act": ("silu", None),
    "use_bias": (False, None),
    "use_qkv_bias": (False, None),
    "use_rmsnorm": (True, None),
    "use_qk_norm": (True, None),
    "using_split_qkv_in_self_attention": (False, None),
    "use_sliding_window": (False, None),
    "norm_head": (False, None),
    "norm_softmax": (False, None),
    "score_function": ("sigmoid", None),
    "router_dtype": ("fp32", None),
    "moe_router_enable_expert_bias": (True, None),
    "norm_topk_prob": (True, None),
}

# What no file of the released checkpoints states: `generate` takes them as arguments.
_BLOCK = 32
_FILLING = SamplerSpec(name="low_confidence_dynamic", parameters={"threshold": 0.95})
_EDITING = SamplerSpec(name="levenshtein")
_CANDIDATES = 8  # six are what an edited block that goes round in circles may need
_RELEASED_VOCABULARY, _RELEASED_MASK, _RELEASED_END = 157184, 156895, 156892


def _rotary_dim(keys: Keys, head_dim: int) -> int:
    """Read how many dimensions of a head are rotated; both keys say it, and must agree."""
    nested = keys.values.get("rope_parameters")
    rope = Keys(nested, "config.json, rope_parameters") if isinstance(nested, dict) else keys
    source = rope if rope.has("partial_rotary_factor") else keys
    rotary = keys.integer("rotary_dim", most=head_dim) if keys.has("rotary_dim") else None
    if rotary is None or source.has("partial_rotary_factor"):
        share = int(head_dim * source.number("partial_rotary_factor", most=1.0))
        if rotary not in (None, share):
            keys.refuse(
                f"'rotary_dim' is {rotary}, 'partial_rotary_factor' means {share}", "correct one"
            )
        rotary = share
    if rotary % 2 or not rotary:
        keys.refuse(f"{rotary} dimensions of a head are rotated", "it must be an even number")
    return rotary


def _groups(keys: Keys, experts: int, top_k: int) -> tuple[int, int]:
    """Read how many groups the experts form, and how many of them a token chooses from."""
    groups = keys.integer("n_group", most=experts)
    kept = keys.integer("topk_group", most=groups)
    if experts % groups or experts < 2 * groups:
        keys.refuse(
            f"{experts} experts cannot form {groups} groups",
            "groups are of one size, of two experts or more",
        )
    if kept * (experts // groups) < top_k:
        keys.refuse(
            f"{kept} groups of {experts // groups} experts are too few for {top_k}",
            "correct 'topk_group' or 'num_experts_per_tok'",
        )
    return groups, kept


def _moe(keys: Keys, block: int) -> Moe:
    experts, top_k = choices(keys)
    width = keys.integer("moe_intermediate_size")
    shared = keys.integer("num_shared_experts", default=0, least=0)
    moe = Moe(
        experts=experts,
        top_k=top_k,
        width=width,
        scoring="sigmoid",
        normalised=top_k > 1,
        scale=keys.number("routed_scaling_factor") if keys.has("routed_scaling_factor") else 1.0,
        expert_bias=True,
        shared_width=width * shared,
    )
    capacity = keys.integer("expert_capacity", default=0, most=experts, least=0)
    if capacity:  # 2.2 still states groups, and ignores them
        if capacity < top_k:
            keys.refuse(f"'expert_capacity' is {capacity}", f"a token alone uses {top_k} experts")
        return replace(moe, capacity=capacity, routing_block=block)
    groups, kept = _groups(keys, experts, top_k)
    return replace(moe, groups=groups, kept_groups=kept)


def _denoiser(keys: Keys, block: int) -> DenoiserConfig:
    plain = read_decoder(keys, qk_norm=True, partial=True)
    layers = plain.num_hidden_layers
    dense = keys.integer("first_k_dense_replace", least=0, most=layers)
    return replace(
        plain,
        fused_qkv=True,
        rotary_dim=_rotary_dim(keys, plain.head_dim),
        kinds=(DENSE,) * dense + (SPARSE,) * (layers - dense),
        moe=_moe(keys, block),
    )


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require(_SUPPORTED)
    positions = positions_of(keys)
    block = keys.integer("block_size", default=min(_BLOCK, positions), most=positions)
    denoiser = _denoiser(keys, block)
    released = denoiser.vocab_size == _RELEASED_VOCABULARY
    edits = _edits(keys, denoiser.vocab_size)
    spec = decoder_spec(
        LLADA2,
        keys,
        generation_config,
        overrides,
        denoiser,
        regime="block",
        block_length=block,
        sampler=_EDITING if edits else _FILLING,
        candidates=_CANDIDATES,
        default_mask=_RELEASED_MASK if released else None,
        extra_stop=_RELEASED_END if released else None,
    )
    _check_blocks(spec)
    if edits and {*edits} & {spec.mask_id, *spec.stop_ids}:
        keys.refuse(
            f"'delete_token_id' {edits[0]} or 'split_token_id' {edits[1]} is the mask or a stop"
            " token",
            "they must be tokens of their own",
        )
    return replace(spec, delete_id=edits[0], split_id=edits[1]) if edits else spec


def _edits(keys: Keys, vocab_size: int) -> tuple[int, int] | None:
    """Read the ids that delete and insert (2.2), None where there are none."""
    delete, split = (keys.token(f"{role}_token_id", vocab_size) for role in ("delete", "split"))
    if delete is None and split is None:
        return None
    if delete is None or split is None or delete == split:
        keys.refuse(
            f"'delete_token_id' is {delete}, 'split_token_id' is {split}",
            "they must be two tokens, or both left out",
        )
    return delete, split


def _check_blocks(spec: FamilySpec) -> None:
    """Refuse forwards that would feed a part of a routing block."""
    together = spec.routing_block
    if together and spec.regime != "block":
        raise UsageError(
            f"--attention {spec.regime} does not fit {spec.family} with 'expert_capacity', where"
            f" the tokens of a block of {together} choose their experts together",
            "leave it out",
        )
    if together and spec.block_length % together:
        raise UsageError(
            f"--block-length {spec.block_length} does not fit {spec.family} with"
            f" 'expert_capacity', where {together} tokens choose their experts together",
            f"give a multiple of {together}",
        )


def _fit(config: dict[str, Any], original: DenoiserConfig) -> None:
    """Make groups, capacity, dense layers and rotated dimensions fit a scaled ``config``."""
    experts, top_k = config["num_experts"], config["num_experts_per_tok"]
    if config.get("n_group"):
        fitting = range(min(config["n_group"], experts), 0, -1)
        groups = next((n for n in fitting if experts % n == 0 and experts >= 2 * n), 1)
        enough = -(-top_k * groups // experts)
        config["n_group"] = groups
        config["topk_group"] = max(min(config.get("topk_group") or groups, groups), enough)
    if config.get("expert_capacity"):
        config["expert_capacity"] = min(max(config["expert_capacity"], top_k), experts)
    config["first_k_dense_replace"] = min(
        config["first_k_dense_replace"], config["num_hidden_layers"]
    )
    if config.get("rotary_dim") and original.rotary_dim is not None:
        head_dim = config.get("head_dim") or original.head_dim
        config["rotary_dim"] = original.rotary_dim * head_dim // original.head_dim


_OURS, _THEIRS = "layers.{i}.", "model.layers.{i}."
_SAME = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    "mlp.gate.weight",
    "mlp.gate.expert_bias",
    *(f"mlp.shared_experts.{part}_proj.weight" for part in ("gate", "up", "down")),
)

LLADA2 = Family(
    name="llada2",
    architectures=("LLaDA2MoeModelLM",),
    required=(*SPARSE_REQUIRED, "first_k_dense_replace", "moe_intermediate_size"),
    absent=(),
    read=_read,
    weights={
        "embed_tokens.weight": "model.word_embeddings.weight",
        **{_OURS + name: _THEIRS + name for name in _SAME},
        _OURS + "self_attn.qkv_proj.weight": _THEIRS + "attention.query_key_value.weight",
        _OURS + "self_attn.o_proj.weight": _THEIRS + "attention.dense.weight",
        _OURS + "self_attn.q_norm.weight": _THEIRS + "attention.query_layernorm.weight",
        _OURS + "self_attn.k_norm.weight": _THEIRS + "attention.key_layernorm.weight",
        "norm.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    },
    stacked=STACKED,
    size_keys=SPARSE_SIZE_KEYS_WITH_HEAD_DIM,
    fit=_fit,
    mask_text="<|mask|>",
)
