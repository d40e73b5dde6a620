"""Root-mean-square and layer normalisation."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RmsNorm(nn.Module):
    """RMSNorm (arXiv 1910.07467) over the last axis, computed in float32 whatever comes in."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` [..., size]; the result has the dtype of ``x``."""
        shape = (self.weight.shape[0],)
        return functional.rms_norm(x.float(), shape, self.weight.float(), self.eps).to(x.dtype)


class LayerNorm(nn.Module):
    """LayerNorm (arXiv 1607.06450) without bias, computed in float32 whatever comes in."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` [..., size]; the result has the dtype of ``x``."""
        shape = (self.weight.shape[0],)
        found = functional.layer_norm(x.float(), shape, self.weight.float(), None, self.eps)
        return found.to(x.dtype)


class PlainNorm(nn.Module):
    """RMSNorm without a weight, computed in float32 whatever comes in."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` over its last axis; the result has the dtype of ``x``."""
        return functional.rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(x.dtype)
