"""What a network takes in memory, from its shape alone."""

from dlmc.denoiser.config import DenoiserConfig
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
    query = config.num_attention_heads * config.head_dim
    key_value = 2 * config.num_key_value_heads * config.head_dim
    layer = config.hidden_size * (2 * query + key_value + 3 * config.intermediate_size)
    vocabulary = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    bits = _BITS.get(quantization, 8 * BYTES[precision])
    return round(config.num_hidden_layers * layer * bits / 8) + vocabulary * BYTES[precision]


def cache_bytes(config: DenoiserConfig, profile: Profile, precision: Precision) -> int:
    """Return the bytes of a profile's cache and of the keys and values it hands out."""
    positions = profile.batch * (profile.cache + profile.block)
    width = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return positions * width * BYTES[precision]
