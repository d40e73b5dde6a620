"""How fast a forward could be: the floor that matmul rate and memory bandwidth set.

Every function is arithmetic on a model's shape. Counted are matrix products and what a forward
cannot avoid to read: weights, committed keys and values, embedded rows. Norms, softmax, activations
and the head's reductions cost more than nothing, so a floor is never reached.
"""

from dataclasses import dataclass
from typing import Literal

from dlmc_runtime.manifest import Model, Precision, Profile, Quantization

BYTES: dict[Precision, float] = {"float32": 4, "float16": 2, "bfloat16": 2}
_QUANTIZED: dict[Quantization, float] = {"int8": 1, "int4": 0.5, "w8a8": 1}


@dataclass(frozen=True)
class Rates:
    """What the machine does at its best.

    Attributes:
        flops: floating-point operations a second in matrix products; a multiply-add counts two.
        bandwidth: bytes a second from memory.
        how: what was measured, in words.
    """

    flops: float
    bandwidth: float
    how: str


@dataclass(frozen=True)
class Work:
    """What one forward must compute (FLOP) and read (bytes)."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Floor:
    """The least seconds a forward can take, and what sets them."""

    seconds: float
    bound: Literal["compute", "memory"]


@dataclass(frozen=True)
class Weights:
    """A denoiser's weights, counted.

    Attributes:
        layers: everything between embedding and head.
        embedding: one vocabulary matrix.
        tied: whether the head uses the embedding's.
    """

    layers: int
    embedding: int
    tied: bool

    @classmethod
    def of(cls, model: Model, *, tied: bool) -> "Weights":
        """Count the weights of a dense model."""
        embedding = model.vocab_size * model.hidden_size
        return cls(model.parameters - embedding * (1 if tied else 2), embedding, tied)

    def bytes(self, precision: Precision, quantization: Quantization = "none") -> float:
        """Return what all weights take; scales and zero points of quantized ones not counted."""
        matrices = self.embedding * (1 if self.tied else 2)
        return self.layer_bytes(precision, quantization) + matrices * BYTES[precision]

    def layer_bytes(self, precision: Precision, quantization: Quantization = "none") -> float:
        """Return what the weights of the layers take. Quantization leaves embedding and head."""
        return self.layers * _QUANTIZED.get(quantization, BYTES[precision])


def work(
    model: Model,
    weights: Weights,
    profile: Profile,
    precision: Precision,
    quantization: Quantization = "none",
    cache: Precision = "float32",
) -> Work:
    """Return what one forward of ``profile`` must do, every cached position in use.

    Args:
        model: the network's shape.
        weights: its weights.
        profile: B rows of T positions over C cached ones, R of T through the head.
        precision: of weights and arithmetic, the head's included.
        quantization: of the layers' weights.
        cache: precision of the cache.
    """
    positions = profile.batch * profile.block
    rows = profile.batch * profile.rows
    products = weights.layers * positions + weights.embedding * rows
    attended = committed = 0
    for layer in model.caches:
        kept = layer.capacity(profile.cache)
        attended += model.num_attention_heads * layer.head_dim * (kept + profile.block)
        committed += 2 * layer.key_value_heads * layer.head_dim * profile.batch * kept
    embedded = positions * model.hidden_size
    return Work(
        flops=2 * products + 4 * positions * attended,
        bytes=weights.layer_bytes(precision, quantization)
        + (weights.embedding + embedded) * BYTES[precision]
        + committed * BYTES[cache],
    )


def floor(needed: Work, rates: Rates) -> Floor:
    """Return the least seconds for ``needed``: arithmetic and reading overlap at best."""
    compute, memory = needed.flops / rates.flops, needed.bytes / rates.bandwidth
    return Floor(compute, "compute") if compute >= memory else Floor(memory, "memory")
