"""The denoiser: token ids of a block and cached context to one hidden state per position."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.attention import Attention, KeyValue
from dlmc.denoiser.config import SPARSE, DenoiserConfig
from dlmc.denoiser.encoder import EncoderLayer, Transform
from dlmc.denoiser.mlp import Mlp
from dlmc.denoiser.moe import SparseMlp
from dlmc.denoiser.norm import LayerNorm, RmsNorm
from dlmc.denoiser.rope import Rope, ScaledTurn


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: DenoiserConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        if kind == SPARSE and config.moe is not None:
            self.mlp: nn.Module = SparseMlp(config.hidden_size, config.moe)
        else:
            self.mlp = Mlp(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        x: Tensor,
        rope: KeyValue,
        attention_mask: Tensor,
        past: KeyValue,
        query_rope: KeyValue | None = None,
        adapter: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """Map [B,T,hidden] to [B,T,hidden]; also return the block's keys and values."""
        mixed, present = self.self_attn(
            self.input_layernorm(x), rope, attention_mask, past, query_rope, adapter
        )
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class Denoiser(nn.Module):
    """Stack of layers shared by all families but DiffusionGemma.

    Parameter names are those of Qwen3 without the leading ``model.``.
    """

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        size, eps, count = config.hidden_size, config.rms_norm_eps, config.num_hidden_layers
        if config.encoder is None:
            self.layers = nn.ModuleList(Layer(config, config.kind(i)) for i in range(count))
            self.norm: nn.Module = RmsNorm(size, eps)
        else:
            self.embed_norm = LayerNorm(size, eps)
            self.layers = nn.ModuleList(EncoderLayer(config, i) for i in range(count))
            self.norm = LayerNorm(size, eps)
            self.local_rope = Rope(config.head_dim, config.encoder.local_rope_theta)
            self.transform = Transform(config)
            if config.encoder.decoder_bias:
                self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.rope = Rope(config.rotary_dim or config.head_dim, config.rope_theta, config.yarn)
        self.query_turn = ScaledTurn(config.query_scale) if config.query_scale else None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        past: list[KeyValue],
        sliding_attention_mask: Tensor | None = None,
        adapter: Tensor | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Run the stack.

        Args:
            input_ids: int64 [B,T], the tokens of the block.
            position_ids: int64 [B,T], their absolute positions.
            attention_mask: bool [B,1,T,C+T], true = may attend.
            past: one pair of [B,H_kv,C,D] per layer.
            sliding_attention_mask: bool [B,1,T,C+T], for layers that see a window.
            adapter: float32 [B], 1 for rows that the adapter adds to, 0 for others.

        Returns:
            Normalised hidden states [B,T,hidden] and, per layer, the block's keys and values.
        """
        x = self.embed_tokens(input_ids)
        rope = local_rope = self.rope(position_ids)
        if self.config.encoder is not None:
            x, local_rope = self.embed_norm(x), self.local_rope(position_ids)
        query_rope = self.query_turn(position_ids, rope) if self.query_turn else None
        # Here and not in a layer: layers are repeated, and hand on nothing but hidden states.
        added = None if adapter is None else (adapter * self.config.adapter_scale)[:, None, None]
        present = []
        for index, (layer, layer_past) in enumerate(zip(self.layers, past, strict=True)):
            local = self.config.kind(index) == "local"
            x, own = layer(
                x,
                local_rope if local else rope,
                sliding_attention_mask if local else attention_mask,
                layer_past,
                query_rope,
                added,
            )
            present.append(own)
        return self.norm(x), present

    def logits(self, hidden: Tensor, part: slice | None = None) -> Tensor:
        """Return float32 logits [...,V] of hidden states [...,hidden].

        With ``part`` they are those of that part of the vocabulary.
        """
        tied = self.config.tie_word_embeddings
        weight = self.embed_tokens.weight if tied else self.lm_head.weight
        encoder, bias = self.config.encoder, None
        if encoder is not None:
            hidden = self.transform(hidden)
            bias = self.lm_head_bias.float() if encoder.decoder_bias else None
        if part is not None:
            weight, bias = weight[part], bias if bias is None else bias[part]
        return functional.linear(hidden.float(), weight.float(), bias)
