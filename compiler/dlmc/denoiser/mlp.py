"""The gated feed-forward layer."""

from torch import Tensor, nn
from torch.nn import functional


class Mlp(nn.Module):
    """SwiGLU (arXiv 2002.05202): ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B,T,hidden] to [B,T,hidden]."""
        gated: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return gated
