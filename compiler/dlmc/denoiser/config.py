"""The shape of a denoiser, in one place for every family."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DenoiserConfig:
    """Sizes and switches of a decoder-only denoiser; families fill it from ``config.json``.

    Sizes count elements; ``rope_theta`` and ``rms_norm_eps`` are unitless.

    Attributes:
        sliding_window: how far to either side layers with a second mask see; None without such.
        adapter_rank: rank of the adapter that each row switches on or off; 0 without one.
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
    adapter_rank: int = 0
    sliding_window: int | None = None
