"""Grouped-query attention over cached context and the block's own keys."""

from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.config import DenoiserConfig
from dlmc.denoiser.norm import RmsNorm
from dlmc.denoiser.rope import rotate

KeyValue = tuple[Tensor, Tensor]


class Adapter(nn.Module):
    """A low-rank addition to a linear map (LoRA, arXiv 2106.09685), switched row by row."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Linear(inputs, rank, bias=False)
        self.b = nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        """Map [B,T,inputs] to [B,T,outputs], times ``scale`` [B,1,1]."""
        added: Tensor = self.b(self.a(x)) * scale.to(x.dtype)
        return added


class Attention(nn.Module):
    """Attention whose mask and positions are data, so that one graph serves every regime."""

    def __init__(self, config: DenoiserConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query = config.num_attention_heads * config.head_dim
        key_value = config.num_key_value_heads * config.head_dim
        size, bias = config.hidden_size, config.qkv_bias
        self.widths = (query, key_value, key_value)
        if config.fused_qkv:
            self.qkv_proj = nn.Linear(size, sum(self.widths), bias=bias)
        else:
            self.q_proj = nn.Linear(size, query, bias=bias)
            self.k_proj = nn.Linear(size, key_value, bias=bias)
            self.v_proj = nn.Linear(size, key_value, bias=bias)
        self.fused = config.fused_qkv
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        if config.adapter_rank:
            self.o_adapter = Adapter(query, config.hidden_size, config.adapter_rank)
        norm = config.head_dim if config.qk_norm else 0
        self.q_norm = RmsNorm(norm, config.rms_norm_eps) if norm else nn.Identity()
        self.k_norm = RmsNorm(norm, config.rms_norm_eps) if norm else nn.Identity()

    def _project(self, x: Tensor) -> Iterator[Tensor]:
        """Yield queries, keys and values of [B,T,hidden], each [B,T,H,D]."""
        if self.fused:
            mixed = self.qkv_proj(x)
            ends = tuple(accumulate(self.widths))
            parts = tuple(
                mixed[..., end - width : end] for end, width in zip(ends, self.widths, strict=True)
            )
        else:
            parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        yield from (part.unflatten(-1, (-1, self.head_dim)) for part in parts)

    def forward(
        self,
        x: Tensor,
        rope: KeyValue,
        attention_mask: Tensor,
        past: KeyValue,
        query_rope: KeyValue | None = None,
        adapter: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """Attend from the block to context and block.

        Args:
            x: [B,T,hidden].
            rope: cosines and sines of the block's positions.
            attention_mask: bool [B,1,T,C+T], true = may attend; every row sees at least one key.
            past: context keys (after RoPE) and values, each [B,H_kv,C,D]; C may be 0.
            query_rope: what to rotate queries with instead of ``rope``.
            adapter: float32 [B,1,1], what the adapter's part of a row is multiplied with.

        Returns:
            The output [B,T,hidden] and the block's own keys and values [B,H_kv,T,D].
        """
        raw_query, raw_key, raw_value = self._project(x)
        query = rotate(self.q_norm(raw_query).transpose(1, 2), *(query_rope or rope))
        key = rotate(self.k_norm(raw_key).transpose(1, 2), *rope)
        value = raw_value.transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(
            query,
            torch.cat((past[0], key), dim=2),
            torch.cat((past[1], value), dim=2),
            attn_mask=attention_mask,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        flat = mixed.transpose(1, 2).flatten(2)
        out = self.o_proj(flat)
        if adapter is not None:
            out = out + self.o_adapter(flat, adapter)
        return out, (key, value)
