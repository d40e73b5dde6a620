"""Mixture of experts: gated feed-forward layers of which each token uses a few.

The network states what each token gives each expert, zero for those it does not use, and the sum
runs over all of them: exact for any routing, and of static shapes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.config import Activation

_ACTIVATIONS = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def activate(kind: Activation, x: Tensor) -> Tensor:
    """Apply a gate's activation."""
    found: Tensor = _ACTIVATIONS[kind](x)
    return found


def spread(chosen: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return what every expert gets, [...,E], from ``weights`` [...,k] of the ``chosen`` ones."""
    experts = torch.arange(count, device=chosen.device)
    given = torch.where(chosen.unsqueeze(-1) == experts, weights.unsqueeze(-1), 0.0)
    return given.sum(-2)


def mix(x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, kind: Activation) -> Tensor:
    """Return the weighted sum of all experts.

    Stored weights are the left factors, so that no engine has to transpose them.

    Args:
        x: [B,T,hidden].
        weights: float32 [B,T,E], zero for experts that a token does not use.
        gate_up: [E,2I,hidden], the rows of the gate first.
        down: [E,hidden,I].
        kind: activation of the gate.
    """
    tokens = x.flatten(0, 1).transpose(0, 1)  # [hidden,N]
    both = gate_up @ tokens
    width = down.shape[2]
    gated = activate(kind, both[:, :width]) * both[:, width:]  # [E,I,N]
    shares = weights.flatten(0, 1).transpose(0, 1).unsqueeze(1).to(gated.dtype)
    mixed = (down @ (gated * shares)).sum(0)
    return mixed.transpose(0, 1).reshape(x.shape)


class Experts(nn.Module):
    """The weights of all experts of a layer."""

    def __init__(self, experts: int, hidden: int, intermediate: int, kind: Activation) -> None:
        super().__init__()
        self.kind: Activation = kind
        self.gate_up_proj = nn.Parameter(torch.zeros(experts, 2 * intermediate, hidden))
        self.down_proj = nn.Parameter(torch.zeros(experts, hidden, intermediate))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Mix the experts' answers to ``x`` [B,T,hidden] by ``weights`` float32 [B,T,E]."""
        return mix(x, weights, self.gate_up_proj, self.down_proj, self.kind)
