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

    The layers' linear maps are quantized; embeddings and the head are not.
    """
    layers = sum(_linear(config, config.kind(i)) for i in range(config.num_hidden_layers))
    vocabulary = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    bits = _BITS.get(quantization, 8 * BYTES[precision])
    return round(layers * bits / 8) + vocabulary * BYTES[precision]


def _linear(config: DenoiserConfig, kind: str) -> int:
    """Return how many numbers the linear maps of a layer of that kind hold."""
    heads, head_dim = config.cache_shape(kind)
    query, key_value = config.num_attention_heads * head_dim, 2 * heads * head_dim
    width = config.num_experts * config.expert_width
    if kind == SPARSE and config.moe is not None:
        width += config.moe.shared_width
    else:
        width = config.intermediate_size + (0 if config.gemma is None else width)
    return config.hidden_size * (2 * query + key_value + 3 * width)


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
