"""What a network takes in memory, from its shape alone."""

import math

from dlmc.denoiser.config import SPARSE, DenoiserConfig
from dlmc_runtime.manifest import Precision, Profile, Quantization

BYTES: dict[Precision, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes a number takes."""

_BITS: dict[Quantization, float] = {"int8": 8, "w8a8": 8, "int4": 4 + 16 / 32}
# With a two-byte scale for 32 weights of four bits.


def weight_bytes(
    config: DenoiserConfig, precision: Precision, quantization: Quantization = "none"
) -> int:
    """Return the bytes of a network's weights in an engine.

    The layers' linear maps and experts are quantized; embeddings, the head and routers are not.
    """
    kinds = [config.kind(layer) for layer in range(config.num_hidden_layers)]
    layers = sum(_attention(config, kind) + _feed_forward(config, kind) for kind in kinds)
    kept = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    kept += sum(_router(config, kind) for kind in kinds)
    if config.gemma is not None:
        kept += 3 * config.hidden_size * config.gemma.self_conditioning_size
    bits = _BITS.get(quantization, 8 * BYTES[precision])
    return round(layers * bits / 8) + kept * BYTES[precision]


def _attention(config: DenoiserConfig, kind: str) -> int:
    heads, head_dim = config.cache_shape(kind)
    query = 2 * config.num_attention_heads * head_dim
    shared = config.gemma is not None and kind == "full"  # keys serve as values
    return config.hidden_size * (query + (1 if shared else 2) * heads * head_dim)


def _feed_forward(config: DenoiserConfig, kind: str) -> int:
    width, experts = config.intermediate_size, config.num_experts * config.expert_width
    if config.gemma is not None:
        width += experts
    elif config.moe is not None and kind == SPARSE:
        width = experts + config.moe.shared_width
    return 3 * config.hidden_size * width


def _router(config: DenoiserConfig, kind: str) -> int:
    chooses = config.gemma is not None or kind == SPARSE
    return config.hidden_size * config.num_experts if chooses else 0


def cache_bytes(config: DenoiserConfig, profile: Profile, precision: Precision) -> int:
    """Return the bytes of a profile's cache and of the keys and values it hands out."""
    numbers = 0
    for layer in range(config.num_hidden_layers):
        kind = config.kind(layer)
        kept = profile.cache
        if config.sliding_context is not None and config.keeps_last(kind):
            kept = min(kept, config.sliding_context)
        numbers += 2 * math.prod(config.cache_shape(kind)) * (kept + profile.block)
    return profile.batch * numbers * BYTES[precision]
