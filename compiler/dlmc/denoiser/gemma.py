"""DiffusionGemma: a Gemma 4 network with experts that denoises canvases of uniform noise.

Reference code: transformers, ``models/diffusion_gemma``. One stack of layers serves both phases:
it reads committed text causally, and denoises a canvas that sees itself both ways. The phases
differ in how tokens enter, in the mask, and in one scalar a layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.attention import KeyValue
from dlmc.denoiser.config import DenoiserConfig, Gemma
from dlmc.denoiser.mlp import Mlp, activate
from dlmc.denoiser.moe import Experts, spread
from dlmc.denoiser.norm import PlainNorm, RmsNorm
from dlmc.denoiser.rope import Rope, rotate

SLIDING, FULL = "sliding", "full"
"""Kinds of layers: which see the last of the context, and which see all of it."""


class GemmaAttention(nn.Module):
    """Attention with normalised queries, keys and values, and no scale but what the norms hold.

    Layers that see everything have no values of their own: their keys before norm and rotation.
    """

    def __init__(self, config: DenoiserConfig, kind: str) -> None:
        super().__init__()
        heads, self.head_dim = config.cache_shape(kind)
        size, eps = config.hidden_size, config.rms_norm_eps
        query = config.num_attention_heads * self.head_dim
        self.q_proj = nn.Linear(size, query, bias=False)
        self.k_proj = nn.Linear(size, heads * self.head_dim, bias=False)
        self.v_proj = None
        if kind == SLIDING:
            self.v_proj = nn.Linear(size, heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(query, size, bias=False)
        self.q_norm = RmsNorm(self.head_dim, eps)
        self.k_norm = RmsNorm(self.head_dim, eps)
        self.v_norm = PlainNorm(eps)

    def forward(
        self, x: Tensor, rope: KeyValue, attention_mask: Tensor, past: KeyValue
    ) -> tuple[Tensor, KeyValue]:
        """Attend from the block to context and block, as `dlmc.denoiser.attention.Attention`."""
        query, raw_key = (
            part(x).unflatten(-1, (-1, self.head_dim)) for part in (self.q_proj, self.k_proj)
        )
        raw_value = raw_key
        if self.v_proj is not None:
            raw_value = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        query = rotate(self.q_norm(query).transpose(1, 2), *rope)
        key = rotate(self.k_norm(raw_key).transpose(1, 2), *rope)
        value = self.v_norm(raw_value).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query,
            torch.cat((past[0], key), dim=2),
            torch.cat((past[1], value), dim=2),
            attn_mask=attention_mask,
            scale=1.0,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), (key, value)


class GemmaRouter(nn.Module):
    """Says what each token gives each expert; it sees the residual stream itself."""

    def __init__(self, config: DenoiserConfig, gemma: Gemma) -> None:
        super().__init__()
        self.top_k, self.root = gemma.top_k, config.hidden_size**-0.5
        self.norm = PlainNorm(config.rms_norm_eps)
        self.proj = nn.Linear(config.hidden_size, gemma.num_experts, bias=False)
        self.scale = nn.Parameter(torch.ones(config.hidden_size))
        self.per_expert_scale = nn.Parameter(torch.ones(gemma.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 [B,T,E] for [B,T,hidden]; zero for experts that are not used."""
        scaled = self.norm(x.float()) * self.scale.float() * self.root
        scores = functional.linear(scaled, self.proj.weight.float())
        weights, chosen = scores.softmax(-1).topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        return spread(chosen, weights, scores.shape[-1]) * self.per_expert_scale.float()


class GemmaLayer(nn.Module):
    """One layer: attention, then a dense feed-forward layer and experts side by side."""

    def __init__(self, config: DenoiserConfig, gemma: Gemma, kind: str) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RmsNorm(size, eps)
        self.self_attn = GemmaAttention(config, kind)
        self.post_attention_layernorm = RmsNorm(size, eps)
        self.pre_feedforward_layernorm = RmsNorm(size, eps)
        self.mlp = Mlp(size, config.intermediate_size, "gelu_tanh")
        self.post_feedforward_layernorm_1 = RmsNorm(size, eps)
        self.router = GemmaRouter(config, gemma)
        self.pre_feedforward_layernorm_2 = RmsNorm(size, eps)
        self.experts = Experts(
            gemma.num_experts, size, gemma.expert_intermediate_size, "gelu_tanh", gemma.top_k
        )
        self.post_feedforward_layernorm_2 = RmsNorm(size, eps)
        self.post_feedforward_layernorm = RmsNorm(size, eps)
        self.layer_scalar = nn.Parameter(torch.ones(1))
        self.encoder_layer_scalar = nn.Parameter(torch.ones(1))

    def forward(
        self, x: Tensor, rope: KeyValue, attention_mask: Tensor, past: KeyValue, denoising: Tensor
    ) -> tuple[Tensor, KeyValue]:
        """Map [B,T,hidden] to [B,T,hidden]; also return the block's keys and values.

        ``denoising`` is bool [B,1,1]: which of the two scalars a row takes.
        """
        mixed, present = self.self_attn(self.input_layernorm(x), rope, attention_mask, past)
        x = x + self.post_attention_layernorm(mixed)
        dense = self.post_feedforward_layernorm_1(self.mlp(self.pre_feedforward_layernorm(x)))
        sparse = self.experts(self.pre_feedforward_layernorm_2(x), self.router(x))
        both = dense + self.post_feedforward_layernorm_2(sparse)
        x = x + self.post_feedforward_layernorm(both)
        scalar = torch.where(denoising, self.layer_scalar, self.encoder_layer_scalar)
        return x * scalar.to(x.dtype), present


class SelfConditioning(nn.Module):
    """Adds what the step before expected of each position (arXiv 2208.04202) to its token."""

    def __init__(self, config: DenoiserConfig, gemma: Gemma) -> None:
        super().__init__()
        size = config.hidden_size
        self.pre_norm = RmsNorm(size, config.rms_norm_eps)
        self.gate_proj = nn.Linear(size, gemma.self_conditioning_size, bias=False)
        self.up_proj = nn.Linear(size, gemma.self_conditioning_size, bias=False)
        self.down_proj = nn.Linear(gemma.self_conditioning_size, size, bias=False)
        self.post_norm = PlainNorm(config.rms_norm_eps)

    def forward(self, x: Tensor, expected: Tensor) -> Tensor:
        """Map embeddings and expected embeddings, both [B,T,hidden], to [B,T,hidden]."""
        normed = self.pre_norm(expected)
        gate = activate("gelu_tanh", self.gate_proj(normed))
        conditioned: Tensor = self.post_norm(x + self.down_proj(gate * self.up_proj(normed)))
        return conditioned


class GemmaDenoiser(nn.Module):
    """DiffusionGemma's text network. Parameter names are the checkpoint's below ``decoder``."""

    def __init__(self, config: DenoiserConfig, gemma: Gemma) -> None:
        super().__init__()
        self.config, self.gemma = config, gemma
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(GemmaLayer(config, gemma, kind) for kind in config.kinds)
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_conditioning = SelfConditioning(config, gemma)
        self.sliding_rope = Rope(config.head_dim, config.rope_theta)
        self.full_rope = Rope(
            gemma.global_head_dim, gemma.global_rope_theta, turning=gemma.global_turning
        )
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        past: list[KeyValue],
        *,
        self_conditioning: Tensor,
        denoising: Tensor,
        sliding_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Run the stack.

        Args:
            input_ids: int64 [B,T], the tokens of the block.
            position_ids: int64 [B,T], their absolute positions.
            attention_mask: bool [B,1,T,C+T], true = may attend, for layers that see everything.
            past: one pair per layer, [B,H_kv,C,D] or, where it sees the last W positions,
                [B,H_kv,W,D].
            self_conditioning: float32 [B,T,hidden], what the step before expected; zeros at first.
            denoising: bool [B], false for rows that read committed text.
            sliding_attention_mask: bool [B,1,T,W+T], for layers that see the last W positions.

        Returns:
            Normalised hidden states [B,T,hidden] and, per layer, the block's keys and values.
        """
        phase = denoising[:, None, None]
        embedded = self.embed_tokens(input_ids) * self.gemma.embed_scale
        x = torch.where(phase, self.self_conditioning(embedded, self_conditioning), embedded)
        ropes = {SLIDING: self.sliding_rope(position_ids), FULL: self.full_rope(position_ids)}
        masks = {SLIDING: sliding_attention_mask, FULL: attention_mask}
        present = []
        for kind, layer, layer_past in zip(self.config.kinds, self.layers, past, strict=True):
            x, own = layer(x, ropes[kind], masks[kind], layer_past, phase)
            present.append(own)
        return self.norm(x), present

    def logits(self, hidden: Tensor, part: slice | None = None) -> Tensor:
        """Return float32 logits [...,V], softly capped, of hidden states [...,hidden].

        With ``part`` they are those of that part of the vocabulary.
        """
        tied = self.config.tie_word_embeddings
        weight = self.embed_tokens.weight if tied else self.lm_head.weight
        weight = weight if part is None else weight[part]
        cap = self.gemma.softcap
        raw = functional.linear(hidden.float(), weight.float())
        return (raw / cap).tanh() * cap if cap else raw

    def expected(self, weights: Tensor, part: slice | None = None) -> Tensor:
        """Return float32 [...,hidden], the sum of embeddings with ``weights`` [...,n].

        Args:
            weights: float32; with probabilities, the sum is the embedding to expect.
            part: which n of the vocabulary they are for; None for all of it.
        """
        table = self.embed_tokens.weight
        if part is not None and part != slice(0, self.config.vocab_size):
            table = table[part]
        return weights @ table.float() * self.gemma.embed_scale
