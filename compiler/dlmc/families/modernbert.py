"""ModernBERT (arXiv 2412.13663) fine-tuned to chat by dllm: an encoder, bidirectional.

Most layers see a window only. Logits are not shifted; the mask is the encoder's own ``[MASK]``.
Reference code: transformers, ``models/modernbert``, and ZHZisZZ/dllm, ``dllm/core/samplers``.
"""

from collections.abc import Mapping
from typing import Any

from dlmc.denoiser.config import DenoiserConfig, Encoder
from dlmc.families.decoder import REQUIRED, SIZE_KEYS, decoder_spec
from dlmc.families.keys import MOST_LAYERS, Keys, Supported
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc_runtime.manifest import SamplerSpec

_SUPPORTED: Supported = {
    "hidden_activation": ("gelu", None),
    "classifier_activation": ("gelu", None),
    "norm_bias": (False, None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "classifier_bias": (False, None),
    "tie_word_embeddings": (True, None),
    "rope_scaling": (None,),
}
_BLOCK = 32
# What transformers assumes where a key is absent.
_GLOBAL_THETA, _LOCAL_THETA = 160_000.0, 10_000.0
_WINDOW, _GLOBAL_EVERY = 128, 3


def _theta(keys: Keys, kind: str, flat: str, default: float) -> float:
    """Read the base of one kind of layer; transformers 5 writes them one level deeper."""
    nested = keys.values.get("rope_parameters")
    if nested is None:
        return keys.number(flat) if keys.has(flat) else default
    inner = nested.get(kind) if isinstance(nested, dict) else None
    if not isinstance(inner, dict):
        keys.refuse(
            f"'rope_parameters' has no object {kind!r}", "copy it from the original checkpoint"
        )
    rope = Keys(inner, f"{keys.file}, rope_parameters, {kind}")
    rope.require({"rope_type": ("default", None)})
    return rope.number("rope_theta") if rope.has("rope_theta") else default


def _kinds(keys: Keys, layers: int) -> tuple[str, ...]:
    every = keys.integer("global_attn_every_n_layers", default=_GLOBAL_EVERY)
    pattern = ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    if keys.values.get("layer_types") not in (None, pattern):
        keys.refuse(
            f"'layer_types' is not one full_attention in {every} layers",
            "dlmc implements that only",
        )
    return tuple("local" if i % every else "global" for i in range(layers))


def _denoiser(keys: Keys) -> DenoiserConfig:
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    if hidden % heads:
        keys.refuse(
            f"'hidden_size' {hidden} is not a multiple of 'num_attention_heads' {heads}",
            "correct one",
        )
    keys.check_heads(heads, heads, hidden // heads)
    layers = keys.integer("num_hidden_layers", most=MOST_LAYERS)
    window = keys.integer("local_attention", default=_WINDOW)
    if window < 2:
        keys.refuse(f"'local_attention' is {window}", "it must be 2 or more")
    theta = _theta(keys, "full_attention", "global_rope_theta", _GLOBAL_THETA)
    # An explicit null means one base for all layers.
    local = theta if keys.values.get("local_rope_theta", 0) is None else _LOCAL_THETA
    return DenoiserConfig(
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=keys.integer("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        rms_norm_eps=keys.number("norm_eps"),
        rope_theta=theta,
        tie_word_embeddings=True,
        kinds=_kinds(keys, layers),
        sliding_window=window // 2,
        encoder=Encoder(
            local_rope_theta=_theta(keys, "sliding_attention", "local_rope_theta", local),
            decoder_bias=keys.flag("decoder_bias", default=True),
        ),
    )


def _read(
    config: Mapping[str, Any], generation_config: Mapping[str, Any], overrides: Overrides
) -> FamilySpec:
    keys = Keys(config)
    keys.require(_SUPPORTED)
    return decoder_spec(
        MODERNBERT,
        keys,
        generation_config,
        overrides,
        _denoiser(keys),
        regime="full",
        block_length=_BLOCK,
        sampler=SamplerSpec(name="low_confidence"),
        last_block="cut",
    )


_LAYER = "layers.{i}."

MODERNBERT = Family(
    name="modernbert",
    architectures=("ModernBertForMaskedLM",),
    required=(*REQUIRED, "norm_eps"),
    absent=("num_experts",),
    read=_read,
    weights={
        "embed_tokens.weight": "model.embeddings.tok_embeddings.weight",
        "embed_norm.weight": "model.embeddings.norm.weight",
        _LAYER + "input_layernorm.weight": f"model.{_LAYER}attn_norm.weight",
        _LAYER + "self_attn.qkv_proj.weight": f"model.{_LAYER}attn.Wqkv.weight",
        _LAYER + "self_attn.o_proj.weight": f"model.{_LAYER}attn.Wo.weight",
        _LAYER + "post_attention_layernorm.weight": f"model.{_LAYER}mlp_norm.weight",
        _LAYER + "mlp.gate_up_proj.weight": f"model.{_LAYER}mlp.Wi.weight",
        _LAYER + "mlp.down_proj.weight": f"model.{_LAYER}mlp.Wo.weight",
        "norm.weight": "model.final_norm.weight",
        "transform.dense.weight": "head.dense.weight",
        "transform.norm.weight": "head.norm.weight",
        "lm_head.weight": "decoder.weight",
        "lm_head_bias": "decoder.bias",
    },
    size_keys={key: names for key, names in SIZE_KEYS.items() if key != "kv_heads"},
    mask_text="[MASK]",
)
