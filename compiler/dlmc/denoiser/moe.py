"""Mixture of experts: gated feed-forward layers of which each token uses a few.

The network states what each token gives each expert, zero for those it does not use, and the sum
runs over all of them: exact for any routing, and of static shapes.
"""

from collections.abc import Callable
from math import inf

import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.config import Activation, Moe, Scoring
from dlmc.denoiser.mlp import Mlp, activate

_SCORES: dict[Scoring, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
}


def spread(chosen: Tensor, weights: Tensor, count: int) -> Tensor:
    """Return what every expert gets, [...,E], from ``weights`` [...,k] of the ``chosen`` ones.

    By comparison, because TensorRT has no scattering of its own.
    """
    experts = torch.arange(count, device=chosen.device)
    return torch.where(chosen.unsqueeze(-1) == experts, weights.unsqueeze(-1), 0.0).sum(-2)


def mixed(x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, kind: str) -> Tensor:
    """Return the weighted sum of all experts, [B,T,hidden].

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
    summed = (down @ (gated * shares)).sum(0)
    return summed.transpose(0, 1).reshape(x.shape)


@torch.library.custom_op("dlmc::moe", mutates_args=())
def mix(x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, kind: str, top_k: int) -> Tensor:
    """Return what `mixed` does, as an operator that an exported graph has one node for.

    ``top_k`` is how many experts a token uses at most: a kernel that skips the others needs it.
    """
    del top_k
    return mixed(x, weights, gate_up, down, kind)


@mix.register_fake
def _(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)


class Experts(nn.Module):
    """The weights of all experts of a layer."""

    def __init__(
        self, experts: int, hidden: int, intermediate: int, kind: Activation, top_k: int
    ) -> None:
        super().__init__()
        self.kind: Activation = kind
        self.top_k = top_k
        self.gate_up_proj = nn.Parameter(torch.zeros(experts, 2 * intermediate, hidden))
        self.down_proj = nn.Parameter(torch.zeros(experts, hidden, intermediate))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Mix the experts' answers to ``x`` [B,T,hidden] by ``weights`` float32 [B,T,E]."""
        if not torch.compiler.is_exporting():  # which also learns
            return mixed(x, weights, self.gate_up_proj, self.down_proj, self.kind)
        node: Tensor = mix(x, weights, self.gate_up_proj, self.down_proj, self.kind, self.top_k)
        return node


def within_groups(scores: Tensor, groups: int, kept: int) -> Tensor:
    """Return scores [B,T,E], -inf outside of the best groups of each token.

    A group is as good as the sum of its two best scores (DeepSeek-V3, arXiv 2412.19437).
    """
    grouped = scores.unflatten(-1, (groups, -1))
    best = grouped.topk(2).values.sum(-1)
    chosen = _chosen(best, kept)
    return torch.where(chosen.unsqueeze(-1), grouped, -inf).flatten(-2)


def within_blocks(scores: Tensor, length: int, capacity: int) -> Tensor:
    """Return scores [B,T,E], -inf outside of the best experts of each block of ``length`` tokens.

    T is a multiple of the length. An expert is as good for a block as the best score that one of
    its tokens gives it (LLaDA2.2).
    """
    blocks = scores.unflatten(1, (-1, length))
    chosen = _chosen(blocks.amax(2), capacity)
    return torch.where(chosen.unsqueeze(2), blocks, -inf).flatten(1, 2)


def _chosen(scores: Tensor, count: int) -> Tensor:
    """Return bool [...,N], true for the ``count`` best of ``scores`` [...,N]."""
    values, indices = scores.topk(count)
    return spread(indices, torch.ones_like(values), scores.shape[-1]) > 0


class Router(nn.Module):
    """Says what each token gives each expert, in float32 whatever comes in."""

    def __init__(self, hidden: int, moe: Moe) -> None:
        super().__init__()
        self.moe = moe
        self.weight = nn.Parameter(torch.zeros(moe.experts, hidden))
        if moe.expert_bias:
            self.expert_bias = nn.Parameter(torch.zeros(moe.experts))

    def _eligible(self, scores: Tensor) -> Tensor:
        """Return what experts are chosen by, [B,T,E]; -inf for those that are out of question."""
        moe = self.moe
        biased = scores + self.expert_bias.float() if moe.expert_bias else scores
        if moe.capacity:
            return within_blocks(biased, moe.routing_block, moe.capacity)
        if moe.kept_groups < moe.groups:
            return within_groups(biased, moe.groups, moe.kept_groups)
        return biased

    def forward(self, x: Tensor) -> Tensor:
        """Return float32 [B,T,E] for [B,T,hidden]; zero for experts that are not used."""
        moe = self.moe
        scores = _SCORES[moe.scoring](functional.linear(x.float(), self.weight.float()))
        chosen = self._eligible(scores).topk(moe.top_k).indices
        weights = scores.gather(-1, chosen)
        if moe.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
        return spread(chosen, weights * moe.scale, moe.experts)


# As in the reference code of LLaDA2; of no effect where the scores are those of a softmax.
_TINY = 1e-20


class SparseMlp(nn.Module):
    """Gated feed-forward layers of which each token uses a few, and one that all may share."""

    def __init__(self, hidden: int, moe: Moe) -> None:
        super().__init__()
        self.gate = Router(hidden, moe)
        self.experts = Experts(moe.experts, hidden, moe.width, "silu", moe.top_k)
        self.shared_experts = Mlp(hidden, moe.shared_width) if moe.shared_width else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [B,T,hidden] to [B,T,hidden]."""
        mixed: Tensor = self.experts(x, self.gate(x))
        return mixed if self.shared_experts is None else mixed + self.shared_experts(x)
