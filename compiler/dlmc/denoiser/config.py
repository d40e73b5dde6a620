"""The shape of a denoiser, in one place for every family."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Yarn:
    """YaRN (arXiv 2309.00071): frequencies stretched for contexts longer than those trained on.

    Attributes:
        factor: how many times longer.
        original_positions: positions that the frequencies were trained on.
        beta_fast: turns over those positions from which on a frequency stays as it is.
        beta_slow: turns below which it is stretched in full.
        attention_factor: what cosines and sines are multiplied with.
    """

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    attention_factor: float


@dataclass(frozen=True)
class QueryScale:
    """Queries grow with their position: ``1 + beta * log(1 + floor(position / positions))``."""

    beta: float
    positions: int


@dataclass(frozen=True)
class Encoder:
    """What ModernBERT does otherwise than a decoder.

    Attributes:
        global_every: every how many layers, from the first on, one sees everything; the others
            see a window.
        local_rope_theta: base of the rotary frequencies of layers that see a window.
        decoder_bias: whether the vocabulary has a bias.
    """

    global_every: int
    local_rope_theta: float
    decoder_bias: bool


@dataclass(frozen=True)
class DenoiserConfig:
    """Sizes and switches of a decoder-only denoiser; families fill it from ``config.json``.

    Sizes count elements; ``rope_theta`` and ``rms_norm_eps`` are unitless.

    Attributes:
        qk_norm: whether queries and keys are normalised, head by head.
        qkv_bias: whether their projections, and that of the values, have a bias.
        yarn: how the rotary frequencies are stretched.
        query_scale: how queries grow with their position.
        sliding_window: how far to either side layers with a second mask see; None without such.
        adapter_rank: rank of the adapter that each row switches on or off; 0 without one.
        adapter_scale: what the adapter's contribution is multiplied with.
        encoder: what is otherwise in ModernBERT; None for decoders.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    yarn: Yarn | None = None
    query_scale: QueryScale | None = None
    sliding_window: int | None = None
    adapter_rank: int = 0
    adapter_scale: float = 1.0
    encoder: Encoder | None = None

    @property
    def period(self) -> int:
        """After how many layers, the first aside, layers repeat."""
        return self.encoder.global_every if self.encoder else 1

    def sees_window(self, layer: int) -> bool:
        """Whether a layer attends within the sliding window only."""
        return self.encoder is not None and layer % self.encoder.global_every != 0
