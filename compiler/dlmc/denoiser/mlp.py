"""The gated feed-forward layer."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.config import Activation

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def activate(kind: str, x: Tensor) -> Tensor:
    """Apply a gate's activation."""
    found: Tensor = _ACTIVATIONS[kind](x)
    return found


class Mlp(nn.Module):
    """SwiGLU or GeGLU (arXiv 2002.05202): ``down(activation(gate(x)) * up(x))``."""

    def __init__(self, hidden: int, intermediate: int, kind: Activation = "silu") -> None:
        super().__init__()
        self.kind: Activation = kind
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B,T,hidden] to [B,T,hidden]."""
        gated: Tensor = self.down_proj(activate(self.kind, self.gate_proj(x)) * self.up_proj(x))
        return gated
