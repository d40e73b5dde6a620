"""DiffusionGemma (Google): a Gemma 4 network with experts, context-causal, of uniform noise.

A canvas of ``canvas_length`` positions begins as random tokens; there is no mask. Logits are not
shifted. Reference code: transformers 5.24, ``models/diffusion_gemma``. Images are not supported:
they would enter as embeddings in the place of ``image_token_id``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dlmc.denoiser.config import DenoiserConfig, Gemma
from dlmc.families.decoder import decoder_spec
from dlmc.families.keys import MOST_LAYERS, Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import Parameter, SamplerSpec

_SUPPORTED: Supported = {
    "hidden_activation": ("gelu_pytorch_tanh", None),
    "attention_bias": (False, None),
    "use_bidirectional_attention": ("vision", None),
}
_KINDS = {"sliding_attention": "sliding", "full_attention": "full"}
# What transformers assumes where a key is absent: config, rotary embedding, generation.
_KEY_VALUE_HEADS = 4
_CANVAS, _WINDOW, _EPS, _SOFTCAP, _POSITIONS = 256, 512, 1e-6, 30.0, 131_072
_SLIDING_THETA, _FULL_THETA, _TURNING = 1e4, 1e6, 0.25
_STEPS, _BOUND, _COLDEST, _HOTTEST, _STABLE, _CONFIDENT = 48, 0.1, 0.4, 0.8, 1, 0.005
_HEAD_DIM = 256
_LARGEST = 1e6


def _kinds(text: Keys, layers: int) -> tuple[str, ...]:
    """Read which layers see everything: one in six, and the last, where nothing is stated."""
    stated = text.values.get("layer_types")
    if stated is None:
        stated = ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(layers)]
        stated[-1] = "full_attention"
    if (
        not isinstance(stated, list)
        or len(stated) != layers
        or not all(isinstance(kind, str) and kind in _KINDS for kind in stated)
        or stated[-1] != "full_attention"
    ):
        text.refuse(
            f"'layer_types' is not one of {' or '.join(_KINDS)} for each of {layers} layers,"
            " the last of them full_attention",
            "copy it from the original checkpoint",
        )
    return tuple(_KINDS[kind] for kind in stated)


def _full_heads(text: Keys, kinds: tuple[str, ...]) -> tuple[int, int]:
    """Return key-value heads and head size of the layers that see everything.

    Released checkpoints state them once; transformers 5.24 writes them layer by layer, where they
    differ from those of the other layers, and the numbers of layers with leading zeros ("05").
    """
    per_layer, default = text.values.get("per_layer_config"), _key_value_heads(text)
    if per_layer is None:
        return (
            text.integer("num_global_key_value_heads", default=default),
            text.integer("global_head_dim", default=512),
        )
    full = [str(i) for i, kind in enumerate(kinds) if kind == "full"]
    items = [*per_layer.items()] if isinstance(per_layer, dict) else [("", per_layer)]
    stated = {_without_zeros(layer): values for layer, values in items}
    if len(stated) < len(items) or not stated.keys() <= {*full}:
        text.refuse(
            "'per_layer_config' is no object whose keys are full_attention layers",
            "copy it from the original checkpoint",
        )
    head_dim = text.integer("head_dim", default=_HEAD_DIM)
    found = set()
    for layer in full:
        values = stated.get(layer, {})
        if not isinstance(values, dict):
            text.refuse(f"'per_layer_config' {layer!r} is no object", "copy it from the original")
        own = Keys(values, f"{text.file}, per_layer_config, {layer}")
        found.add(
            (
                own.integer("num_key_value_heads", default=default),
                own.integer("head_dim", default=head_dim),
            )
        )
    if len(found) > 1:
        text.refuse(
            "'per_layer_config' gives full_attention layers different heads",
            "dlmc implements equal ones only",
        )
    return found.pop()


def _key_value_heads(text: Keys) -> int:
    return text.integer("num_key_value_heads", default=_KEY_VALUE_HEADS)


def _without_zeros(number: str) -> str:
    return number.lstrip("0") or "0"


def _rope(text: Keys, kind: str, rope_type: str, theta: float) -> tuple[Keys, float]:
    """Return the rotary keys of one kind of layer, and their base."""
    nested = text.values.get("rope_parameters")
    values = nested.get(kind) if isinstance(nested, dict) else None if nested is None else ()
    if values is None:
        return Keys({}, text.file), theta
    if not isinstance(values, dict):
        text.refuse(
            f"'rope_parameters' has no object {kind!r}", "copy it from the original checkpoint"
        )
    rope = Keys(values, f"{text.file}, rope_parameters, {kind}")
    rope.require({"rope_type": (rope_type, None), "factor": (1, 1.0, None)})
    return rope, rope.number("rope_theta") if rope.has("rope_theta") else theta


def _embed_scale(hidden: int, dtype: object) -> float:
    """Return the root of the hidden size, rounded to the type of the weights as they are stored."""
    root = np.float32(hidden**0.5)
    if dtype == "bfloat16":
        bits = root.view(np.uint32)
        root = (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).view(np.float32)
    return float(np.float16(root)) if dtype == "float16" else float(root)


def _denoiser(keys: Keys, text: Keys) -> DenoiserConfig:
    layers = text.integer("num_hidden_layers", most=MOST_LAYERS)
    kinds = _kinds(text, layers)
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    key_value_heads = _key_value_heads(text)
    head_dim = text.integer("head_dim", default=_HEAD_DIM)
    full_heads, full_dim = _full_heads(text, kinds)
    text.check_heads(heads, key_value_heads, head_dim)
    text.check_heads(heads, full_heads, full_dim)
    _, theta = _rope(text, "sliding_attention", "default", _SLIDING_THETA)
    full_rope, full_theta = _rope(text, "full_attention", "proportional", _FULL_THETA)
    share = _TURNING
    if full_rope.has("partial_rotary_factor"):
        share = full_rope.number("partial_rotary_factor", most=1.0)
    experts = text.integer("num_experts", most=4096)
    window = text.integer("sliding_window", default=_WINDOW)
    if window < 2:
        text.refuse(f"'sliding_window' is {window}", "it must be 2 or more")
    intermediate = text.integer("intermediate_size")
    dtype = text.values.get("dtype") or keys.values.get("dtype") or keys.values.get("torch_dtype")
    return DenoiserConfig(
        vocab_size=text.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        rms_norm_eps=text.number("rms_norm_eps") if text.has("rms_norm_eps") else _EPS,
        rope_theta=theta,
        qk_norm=True,
        tie_word_embeddings=keys.flag("tie_word_embeddings", default=True),
        kinds=kinds,
        sliding_context=window - 1 if "sliding" in kinds else None,
        gemma=Gemma(
            num_experts=experts,
            top_k=text.integer("top_k_experts", most=experts),
            expert_intermediate_size=text.integer("moe_intermediate_size"),
            self_conditioning_size=keys.integer("self_conditioning_size", default=intermediate),
            global_head_dim=full_dim,
            global_key_value_heads=full_heads,
            global_rope_theta=full_theta,
            global_turning=int(share * full_dim // 2),
            softcap=_softcap(text),
            embed_scale=_embed_scale(hidden, dtype),
        ),
    )


def _softcap(text: Keys) -> float:
    """Read the bound of the logits; an explicit null means none."""
    if "final_logit_softcapping" not in text.values:
        return _SOFTCAP
    return text.number("final_logit_softcapping") if text.has("final_logit_softcapping") else 0.0


def _sampler(generation: Keys) -> SamplerSpec:
    """Read the sampler's parameters, each of which has a default in the reference."""
    stated = generation.values.get("sampler_config")
    if stated is not None and not isinstance(stated, dict):
        generation.refuse("'sampler_config' is no object", "copy it from the original checkpoint")
    own = Keys(stated or {}, f"{generation.file}, sampler_config")
    own.require({"_cls_name": ("EntropyBoundSamplerConfig", None)})

    def number(keys: Keys, name: str, default: float) -> float:
        value = keys.values.get(name)
        if name != "t_max" and type(value) in (int, float) and value == 0:
            return 0.0
        return keys.number(name, most=_LARGEST) if keys.has(name) else default

    stable = generation.values.get("stability_threshold")
    zero = type(stable) is int and stable == 0
    parameters: dict[str, Parameter] = {
        "steps": generation.integer("max_denoising_steps", default=_STEPS, most=16384),
        "entropy_bound": number(own, "entropy_bound", _BOUND),
        "t_min": number(generation, "t_min", _COLDEST),
        "t_max": number(generation, "t_max", _HOTTEST),
        "stability_threshold": 0
        if zero
        else generation.integer("stability_threshold", default=_STABLE, most=1024),
        "confidence_threshold": number(generation, "confidence_threshold", _CONFIDENT),
    }
    return SamplerSpec(name="renoise", parameters=parameters)


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys, nested = Keys(config), config.get("text_config")
    if not isinstance(nested, dict):
        keys.refuse("'text_config' is no object", "copy it from the original checkpoint")
    text = Keys(nested, f"{keys.file}, text_config")
    text.require(_SUPPORTED)
    generation = Keys(generation_config, "generation_config.json")
    positions = text.integer("max_position_embeddings", default=_POSITIONS)
    # Token ids are stated at the top, or with the text network they belong to.
    ids = {key: value for key, value in nested.items() if key.endswith("_token_id")}
    ids |= {key: value for key, value in config.items() if key.endswith("_token_id")}
    return decoder_spec(
        DIFFUSION_GEMMA,
        Keys({**ids, "architectures": config.get("architectures")}),
        generation_config,
        overrides,
        _denoiser(keys, text),
        regime="context",
        aligned_to="answer",
        block_length=keys.integer("canvas_length", default=_CANVAS, most=positions),
        sampler=_sampler(generation),
        candidates=_CANDIDATES,
        masked=False,
        positions=positions,
        max_new_tokens=generation.integer("max_new_tokens", default=_CANVAS),
    )


# Of a tower that nothing reads: transformers always makes one, in the released size 0.55 B.
_SMALLEST_VISION = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "position_embedding_size": 16,
}


def _fit(config: dict[str, Any], original: DenoiserConfig) -> None:
    """Make what is stated layer by layer, and what only some layers have, agree with the sizes."""
    text, layers = config["text_config"], config["text_config"]["num_hidden_layers"]
    stated = text.get("layer_types")
    if stated:
        kinds = [stated[i % len(stated)] for i in range(layers)]
        text["layer_types"] = [*kinds[:-1], "full_attention"]
    if original.gemma is not None:
        _fit_heads(text, original, original.gemma)
    if isinstance(config.get("vision_config"), dict):
        config["vision_config"] |= _SMALLEST_VISION


def _fit_heads(text: dict[str, Any], original: DenoiserConfig, gemma: Gemma) -> None:
    """Scale the heads of layers that see everything as those of the others are."""
    heads, head_dim = text["num_attention_heads"], text.get("head_dim", original.head_dim)
    wanted = max(1, gemma.global_key_value_heads * heads // original.num_attention_heads)
    full = {
        "head_dim": max(2, gemma.global_head_dim * head_dim // original.head_dim // 2 * 2),
        "num_key_value_heads": max(n for n in range(1, wanted + 1) if heads % n == 0),
    }
    if text.get("per_layer_config") is None:
        text["global_head_dim"] = full["head_dim"]
        text["num_global_key_value_heads"] = full["num_key_value_heads"]
        return
    kinds = _kinds(Keys(text), text["num_hidden_layers"])
    text["per_layer_config"] = {str(i): full for i, kind in enumerate(kinds) if kind == "full"}


_CANDIDATES = 8
_LAYER = "layers.{i}."
_OURS = "model.decoder."
_IN_LAYER = (
    "input_layernorm.weight",
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    "post_feedforward_layernorm_1.weight",
    "router.proj.weight",
    "router.scale",
    "router.per_expert_scale",
    "pre_feedforward_layernorm_2.weight",
    "experts.gate_up_proj",
    "experts.down_proj",
    "post_feedforward_layernorm_2.weight",
    "post_feedforward_layernorm.weight",
    "layer_scalar",
)
_AROUND = (
    "embed_tokens.weight",
    "norm.weight",
    "self_conditioning.pre_norm.weight",
    *(f"self_conditioning.{part}_proj.weight" for part in ("gate", "up", "down")),
)

DIFFUSION_GEMMA = Family(
    name="diffusion_gemma",
    architectures=("DiffusionGemmaForBlockDiffusion",),
    required=("text_config", "canvas_length"),
    absent=(),
    read=_read,
    weights={
        **{name: _OURS + name for name in _AROUND},
        **{_LAYER + name: _OURS + _LAYER + name for name in _IN_LAYER},
        _LAYER + "encoder_layer_scalar": f"model.encoder.language_model.{_LAYER}layer_scalar",
        "lm_head.weight": "lm_head.weight",
    },
    size_keys={
        "layers": ("text_config.num_hidden_layers",),
        "hidden": ("text_config.hidden_size",),
        "intermediate": ("text_config.intermediate_size",),
        "heads": ("text_config.num_attention_heads",),
        "kv_heads": ("text_config.num_key_value_heads",),
        "head_dim": ("text_config.head_dim",),
        "vocab": ("text_config.vocab_size",),
        "positions": ("text_config.max_position_embeddings",),
        "experts": ("text_config.num_experts",),
        "top_k_experts": ("text_config.top_k_experts",),
        "expert_intermediate": ("text_config.moe_intermediate_size",),
    },
    fit=_fit,
    unread=("model.encoder.vision_tower.", "model.encoder.embed_vision."),
)
