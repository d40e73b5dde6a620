"""Rotary position embedding, rotate-half form."""

import math

import torch
from torch import Tensor, nn

from dlmc.denoiser.config import QueryScale, Yarn


def inverse_frequencies(
    head_dim: int, theta: float, yarn: Yarn | None = None, turning: int | None = None
) -> Tensor:
    """Return the [head_dim / 2] float32 frequencies of RoPE (arXiv 2104.09864), on the CPU.

    Only the first ``turning`` of them are other than zero, if that is stated (Gemma 4).
    """
    with torch.device("cpu"):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        plain = 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), exponents)
        if turning is not None:
            plain[turning:] = 0.0
        return plain if yarn is None else _stretched(plain, head_dim, theta, yarn)


def _stretched(plain: Tensor, head_dim: int, theta: float, yarn: Yarn) -> Tensor:
    """Divide the slow frequencies by the factor, leave the fast ones, and blend in between.

    The bounds are the dimensions that turn ``beta_fast`` and ``beta_slow`` times over the original
    positions, rounded outwards, as transformers computes them.
    """

    def dimension(turns: float) -> float:
        period = yarn.original_positions / (turns * 2 * math.pi)
        return head_dim * math.log(period) / (2 * math.log(theta))

    low = max(math.floor(dimension(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension(yarn.beta_slow)), head_dim - 1)
    width = high - low or 0.001
    slow = ((torch.arange(len(plain), dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / yarn.factor * slow + plain * (1 - slow)


class Rope(nn.Module):
    """Turns absolute positions into the rotation applied to queries and keys."""

    inv_freq: Tensor

    def __init__(
        self, head_dim: int, theta: float, yarn: Yarn | None = None, turning: int | None = None
    ) -> None:
        super().__init__()
        self._made_of = (head_dim, theta, yarn, turning)
        self.yarn = yarn
        # On the meta device this holds no values; the exporter asks `constants` for them.
        values = self.constants()["inv_freq"].to(torch.get_default_device())
        self.register_buffer("inv_freq", values, persistent=False)

    def constants(self) -> dict[str, Tensor]:
        """Return the true values of this module's buffers, by name."""
        return {"inv_freq": inverse_frequencies(*self._made_of)}

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, float32 [B,1,T,head_dim], for positions [B,T]."""
        angles = position_ids.float()[:, None, :, None] * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        if self.yarn is None or self.yarn.attention_factor == 1.0:
            return cos, sin
        return cos * self.yarn.attention_factor, sin * self.yarn.attention_factor


class ScaledTurn(nn.Module):
    """The rotation of queries that grow with their position (Llama 4, Ministral 3)."""

    def __init__(self, scale: QueryScale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, position_ids: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Multiply cosines and sines [B,1,T,head_dim] with the scale of positions [B,T]."""
        spans = (position_ids.float() / self.scale.positions).floor()
        scale = (1 + self.scale.beta * (1 + spans).log())[:, None, :, None]
        return rope[0] * scale, rope[1] * scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` [B,H,T,D] by the angles of its positions, in float32.

    Angles for fewer than D dimensions rotate the first ones and leave the others.
    """
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], cos, sin), x[..., width:]), dim=-1)
    half = x.shape[-1] // 2
    wide = x.float()
    turned = torch.cat((-wide[..., half:], wide[..., :half]), dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)
