"""Rotary position embedding, rotate-half form."""

import torch
from torch import Tensor, nn


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """Return the [head_dim / 2] float32 frequencies of RoPE (arXiv 2104.09864), on the CPU."""
    with torch.device("cpu"):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), exponents)


class Rope(nn.Module):
    """Turns absolute positions into the rotation applied to queries and keys."""

    inv_freq: Tensor

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        # On the meta device this holds no values; the exporter asks `constants` for them.
        values = inverse_frequencies(head_dim, theta).to(torch.get_default_device())
        self.register_buffer("inv_freq", values, persistent=False)

    def constants(self) -> dict[str, Tensor]:
        """Return the true values of this module's buffers, by name."""
        return {"inv_freq": inverse_frequencies(self.head_dim, self.theta)}

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, float32 [B,1,T,head_dim], for positions [B,T]."""
        angles = position_ids.float()[:, None, :, None] * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [B,H,T,D] by the angles of its positions, in float32."""
    half = x.shape[-1] // 2
    wide = x.float()
    turned = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)
