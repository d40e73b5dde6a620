"""The layers and the head of ModernBERT (arXiv 2412.13663), where they differ from a decoder's."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.attention import KeyValue
from dlmc.denoiser.config import DenoiserConfig
from dlmc.denoiser.norm import LayerNorm
from dlmc.denoiser.rope import rotate


class FusedAttention(nn.Module):
    """Multi-head attention with one projection for queries, keys and values."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.head_dim, self.width = config.head_dim, config.num_attention_heads * config.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * self.width, bias=False)
        self.o_proj = nn.Linear(self.width, config.hidden_size, bias=False)

    def forward(
        self, x: Tensor, rope: KeyValue, attention_mask: Tensor, past: KeyValue
    ) -> tuple[Tensor, KeyValue]:
        """Attend from the block to context and block, as `dlmc.denoiser.attention.Attention`."""
        mixed = self.qkv_proj(x)
        parts = (mixed[..., i * self.width : (i + 1) * self.width] for i in range(3))
        query, key, value = (p.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in parts)
        key = rotate(key, *rope)
        attended = functional.scaled_dot_product_attention(
            rotate(query, *rope),
            torch.cat((past[0], key), dim=2),
            torch.cat((past[1], value), dim=2),
            attn_mask=attention_mask,
        )
        return self.o_proj(attended.transpose(1, 2).flatten(2)), (key, value)


class FusedMlp(nn.Module):
    """GeGLU (arXiv 2002.05202) with one projection for both factors."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.width = config.intermediate_size
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * self.width, bias=False)
        self.down_proj = nn.Linear(self.width, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B,T,hidden] to [B,T,hidden]."""
        both = self.gate_up_proj(x)
        gated: Tensor = self.down_proj(
            functional.gelu(both[..., : self.width]) * both[..., self.width :]
        )
        return gated


class EncoderLayer(nn.Module):
    """One pre-norm layer; the first has no norm before its attention."""

    def __init__(self, config: DenoiserConfig, index: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = LayerNorm(size, eps) if index else nn.Identity()
        self.self_attn = FusedAttention(config)
        self.post_attention_layernorm = LayerNorm(size, eps)
        self.mlp = FusedMlp(config)

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
        del query_rope, adapter  # of decoders only
        mixed, present = self.self_attn(self.input_layernorm(x), rope, attention_mask, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), present


class Transform(nn.Module):
    """What lies between the last norm and the vocabulary: dense, GELU, norm."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.norm = LayerNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [...,hidden] to [...,hidden]."""
        transformed: Tensor = self.norm(functional.gelu(self.dense(hidden)))
        return transformed
