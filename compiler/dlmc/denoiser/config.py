"""The shape of a denoiser, in one place for every family."""

from dataclasses import dataclass, replace
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
Scoring = Literal["softmax", "sigmoid"]

MIXTURE = ("dlmc", "MoE")
"""Domain and name of the function that mixes experts, as a graph calls it."""

DENSE, SPARSE = "dense", "moe"
"""Kinds of layers, where some have experts and others one feed-forward layer for all tokens."""


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
        local_rope_theta: base of the rotary frequencies of layers that see a window.
        decoder_bias: whether the vocabulary has a bias.
    """

    local_rope_theta: float
    decoder_bias: bool


@dataclass(frozen=True)
class Gemma:
    """What DiffusionGemma does otherwise than other decoders.

    Attributes:
        num_experts: experts of a layer.
        top_k: how many of them a token uses.
        expert_intermediate_size: width of an expert.
        self_conditioning_size: width of the network that takes in what the step before expected.
        global_head_dim: head size of layers that see everything.
        global_key_value_heads: their key heads, which are their values too.
        global_rope_theta: base of their rotary frequencies.
        global_turning: how many of those, from the fastest on, are other than zero.
        softcap: bound of the logits; 0 without one.
        embed_scale: what embeddings are multiplied with.
    """

    num_experts: int
    top_k: int
    expert_intermediate_size: int
    self_conditioning_size: int
    global_head_dim: int
    global_key_value_heads: int
    global_rope_theta: float
    global_turning: int
    softcap: float
    embed_scale: float


@dataclass(frozen=True)
class Moe:
    """The experts of a layer, and how a token chooses among them.

    Attributes:
        experts: how many there are.
        top_k: how many of them a token uses.
        width: intermediate size of one.
        scoring: what turns the router's logits into scores.
        normalised: whether the scores of those that a token uses are scaled to a sum of one.
        scale: what they are multiplied with afterwards.
        expert_bias: whether a bias of each expert counts in the choice, and only there.
        groups: how many groups the experts form.
        kept_groups: how many groups a token chooses its experts from: those with the largest sums
            of their two best scores.
        shared_width: intermediate size of the expert that every token uses; 0 without one.
        capacity: from how many experts the tokens of a routing block choose theirs: those with the
            best score that a token of the block gives them; 0 where tokens choose alone.
        routing_block: how many consecutive tokens choose together.
    """

    experts: int
    top_k: int
    width: int
    scoring: Scoring = "softmax"
    normalised: bool = True
    scale: float = 1.0
    expert_bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    shared_width: int = 0
    capacity: int = 0
    routing_block: int = 0


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
        gemma: what is otherwise in DiffusionGemma; None elsewhere.
        moe: the experts of layers of the kind `SPARSE`; None without such.
        fused_qkv: whether queries, keys and values have one projection, their rows in this order.
        rotary_dim: how many dimensions of a head are rotated, the first; None for all.
        kinds: what each layer is, where layers differ; empty where all are alike.
        sliding_context: how many of the last committed positions ``sliding`` layers see, and all
            that they keep; None without such layers.
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
    gemma: Gemma | None = None
    moe: Moe | None = None
    fused_qkv: bool = False
    rotary_dim: int | None = None
    kinds: tuple[str, ...] = ()
    sliding_context: int | None = None

    def kind(self, layer: int) -> str:
        """Return what a layer is; empty where all are alike."""
        return self.kinds[layer] if self.kinds else ""

    @property
    def num_experts(self) -> int:
        """How many experts a layer that has some has; 0 without such layers."""
        if self.gemma is not None:
            return self.gemma.num_experts
        return 0 if self.moe is None else self.moe.experts

    @property
    def experts_per_token(self) -> int:
        """How many of them a token uses."""
        if self.gemma is not None:
            return self.gemma.top_k
        return 0 if self.moe is None else self.moe.top_k

    @property
    def expert_width(self) -> int:
        """Intermediate size of one of them."""
        if self.gemma is not None:
            return self.gemma.expert_intermediate_size
        return 0 if self.moe is None else self.moe.width

    def with_kinds(self, kinds: tuple[str, ...]) -> "DenoiserConfig":
        """Return the configuration of a network with these layers."""
        own = kinds if self.kinds else ()
        return replace(self, num_hidden_layers=len(kinds), kinds=own)

    def keeps_last(self, kind: str) -> bool:
        """Return whether a layer of that kind keeps the last positions only."""
        return self.sliding_context is not None and kind == "sliding"

    def cache_shape(self, kind: str) -> tuple[int, int]:
        """Return key-value heads and head size of a layer of that kind."""
        if self.gemma is not None and kind == "full":
            return self.gemma.global_key_value_heads, self.gemma.global_head_dim
        return self.num_key_value_heads, self.head_dim
