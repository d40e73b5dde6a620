"""The vocabulary head: from hidden states to the few numbers a sampler needs.

Everything that needs the whole vocabulary happens here, inside the graph, so that logits never
leave the engine: candidates, logsumexp, entropy and one draw a row.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.attention import KeyValue
from dlmc.denoiser.config import DenoiserConfig
from dlmc.denoiser.gemma import GemmaDenoiser
from dlmc.denoiser.network import network
from dlmc_runtime.manifest import HeadVariant

# Finite, so that 0 * SUPPRESSED is 0 in an entropy; low enough that its probability is exactly 0.
SUPPRESSED = -1e30

Embed = Callable[[Tensor], Tensor]
"""From probabilities float32 [...,V] to an embedding [...,hidden]."""

# Width of one bin of the two-level running sum in `draw`.
_BIN = 256


class HeadOutputs(NamedTuple):
    """What the head says about [B,R] rows, in the order of the graph's outputs."""

    top_ids: Tensor
    """int64 [B,R,K], best first; the order among equals is the engine's own."""
    top_logits: Tensor
    """float32 [B,R,K]."""
    logsumexp: Tensor
    """float32 [B,R]."""
    entropy: Tensor
    """float32 [B,R], in nats."""
    tempered_logsumexp: Tensor
    """float32 [B,R], of logits / temperature; `logsumexp` where the temperature is 0."""
    tempered_entropy: Tensor
    """float32 [B,R], in nats, of softmax(logits / temperature); `entropy` where it is 0."""
    sampled_id: Tensor
    """int64 [B,R], a draw at the temperature; the best id where it is 0."""
    sampled_logit: Tensor
    """float32 [B,R], the untempered logit of `sampled_id`."""
    logits: Tensor | None = None
    """float32 [B,R,V], nothing suppressed; only in the variant ``logits``."""
    next_self_conditioning: Tensor | None = None
    """float32 [B,R,hidden], the embedding to expect at the temperature; of some networks only."""


def _first_beyond(weights: Tensor, target: Tensor) -> Tensor:
    """Return the first index [...] where the running sum of ``weights`` [...,N] passes ``target``.

    Only indices of positive weight are eligible, whatever rounding does to the running sum; where
    none passes (a target that rounding pushed up to the total) it is the last eligible one. A row
    of NaN has none and yields 0, so that it cannot break the batch around it.
    """
    count = weights.shape[-1]
    positions = torch.arange(count, dtype=weights.dtype, device=weights.device)
    eligible = weights > 0
    passed = eligible & (weights.cumsum(-1) > target.unsqueeze(-1))
    score = torch.where(eligible, positions, -1.0)
    return torch.where(passed, float(count), score).argmax(-1)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw one index a row by inverting the cumulative distribution of ``weights``.

    The sum runs over bins first and then inside one bin: over a vocabulary of 150,000 a single
    float32 running sum would lose the tail, and be rounded differently by every engine.

    Args:
        weights: float32 [...,V], not negative, at least one positive in a row.
        uniform: float32 [...], in [0,1).

    Returns:
        int64 [...], always an index of positive weight.
    """
    padded = functional.pad(weights, (0, -weights.shape[-1] % _BIN))
    bins = padded.reshape(*uniform.shape, -1, _BIN)
    mass = bins.sum(-1)
    target = uniform * mass.sum(-1)
    chosen = _first_beyond(mass, target).unsqueeze(-1)
    before = functional.pad(mass.cumsum(-1), (1, 0)).gather(-1, chosen).squeeze(-1)
    inside = bins.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, _BIN)).squeeze(-2)
    offset = _first_beyond(inside, (target - before).clamp(min=0))
    return chosen.squeeze(-1) * _BIN + offset


def guide(logits: Tensor, guidance: Tensor, partner: Tensor) -> Tensor:
    """Return u + (1 + w) (logits - u), [B,R,V], for the logits u of each row's partner.

    Classifier-free guidance as in LLaDA. It is written so that a row that is its own partner keeps
    its very logits, whatever its w.

    Args:
        logits: float32 [B,R,V].
        guidance: float32 [B], w.
        partner: int64 [B], which row of the batch is unguided.
    """
    unguided = logits.index_select(0, partner)
    return logits + guidance[:, None, None] * (logits - unguided)


def _entropy(shifted: Tensor, weights: Tensor, total: Tensor) -> Tensor:
    """Return the entropy [B,R], in nats, of weights = exp(shifted) that sum up to ``total``."""
    # With p = weights / total this is -sum(p log p), and no term of it is negative.
    return total.log() - (weights * shifted).sum(-1) / total


class Head(nn.Module):
    """Reduces logits to `HeadOutputs`.

    Args:
        vocab_size: V.
        candidates: K, at most V.
        suppressed: ids that must never be predicted, fewer than V.
        variant: ``guided`` combines pairs of rows first; ``logits`` hands out the raw logits.
    """

    suppressed: Tensor

    def __init__(
        self,
        vocab_size: int,
        candidates: int,
        suppressed: Sequence[int],
        variant: HeadVariant = "plain",
    ) -> None:
        super().__init__()
        self.vocab_size, self.candidates = vocab_size, candidates
        self.suppressed_ids, self.variant = tuple(suppressed), variant
        # On the meta device this holds no values; the exporter asks `constants` for them.
        values = self.constants()["suppressed"].to(torch.get_default_device())
        self.register_buffer("suppressed", values, persistent=False)

    def constants(self) -> dict[str, Tensor]:
        """Return the true values of this module's buffers, by name."""
        suppressed = torch.zeros(self.vocab_size, dtype=torch.bool, device="cpu")
        suppressed[list(self.suppressed_ids)] = True
        return {"suppressed": suppressed}

    def forward(
        self,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        guidance: Tensor | None = None,
        partner: Tensor | None = None,
        embed: Embed | None = None,
    ) -> HeadOutputs:
        """Reduce ``logits`` float32 [B,R,V], at ``temperature`` [B], with ``uniform`` [B,R].

        With ``guidance`` and ``partner``, see `guide`, it is the guided logits that are reduced.
        ``embed`` makes the embedding to expect of probabilities at the temperature.
        """
        if guidance is not None and partner is not None:
            logits = guide(logits, guidance, partner)
        allowed = torch.where(self.suppressed, SUPPRESSED, logits)
        top_logits, top_ids = allowed.topk(self.candidates)
        best = top_logits[..., :1]
        shifted = allowed - best
        weights = shifted.exp()
        total = weights.sum(-1)
        greedy = (temperature <= 0)[:, None]
        divisor = torch.where(greedy, 1.0, temperature[:, None])
        # At a tiny temperature a quotient would be infinite, and 0 times that is no number.
        cooled = (shifted / divisor[..., None]).clamp(min=SUPPRESSED)
        tempered = cooled.exp()
        tempered_total = tempered.sum(-1)
        sampled = torch.where(greedy, top_ids[..., 0], draw(tempered, uniform))
        return HeadOutputs(
            top_ids=top_ids,
            top_logits=top_logits,
            logsumexp=best.squeeze(-1) + total.log(),
            entropy=_entropy(shifted, weights, total),
            tempered_logsumexp=best.squeeze(-1) / divisor + tempered_total.log(),
            tempered_entropy=_entropy(cooled, tempered, tempered_total),
            sampled_id=sampled,
            sampled_logit=allowed.gather(-1, sampled.unsqueeze(-1)).squeeze(-1),
            logits=logits if self.variant == "logits" else None,
            next_self_conditioning=None
            if embed is None
            else embed(tempered / tempered_total.unsqueeze(-1)),
        )


class DenoiserWithHead(nn.Module):
    """The denoiser and its head: the inputs and outputs of the exported graph."""

    def __init__(self, config: DenoiserConfig, head: Head) -> None:
        super().__init__()
        self.denoiser = network(config)
        self.head = head

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        past: list[KeyValue],
        head_rows: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        *,
        sliding_attention_mask: Tensor | None = None,
        adapter: Tensor | None = None,
        self_conditioning: Tensor | None = None,
        denoising: Tensor | None = None,
        guidance: Tensor | None = None,
        partner: Tensor | None = None,
    ) -> tuple[HeadOutputs, list[KeyValue]]:
        """Run the denoiser over a block and the head over some of its rows.

        Args:
            input_ids: int64 [B,T].
            position_ids: int64 [B,T].
            attention_mask: bool [B,1,T,C+T], true = may attend.
            past: one pair of float32 [B,H_kv,C,D] per layer.
            head_rows: int64 [B,R], rows of the block that go through the head.
            temperature: float32 [B], not negative.
            uniform: float32 [B,R], in [0,1).
            sliding_attention_mask: bool [B,1,T,C+T], for layers that see a window.
            adapter: float32 [B], 1 where a row uses the adapter, else 0.
            self_conditioning: float32 [B,T,hidden], see `dlmc.denoiser.gemma`.
            denoising: bool [B], likewise.
            guidance: float32 [B], see `guide`; in the variant ``guided``.
            partner: int64 [B], likewise.

        Returns:
            What the head says about the rows, and the block's keys and values per layer.
        """
        given = {
            "sliding_attention_mask": sliding_attention_mask,
            "adapter": adapter,
            "self_conditioning": self_conditioning,
            "denoising": denoising,
        }
        extras = {name: value for name, value in given.items() if value is not None}
        hidden, present = self.denoiser(input_ids, position_ids, attention_mask, past, **extras)
        index = head_rows.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        logits = self.denoiser.logits(hidden.gather(1, index))
        return self.head(logits, temperature, uniform, guidance, partner, self._embed()), present

    def _embed(self) -> Embed | None:
        """Return how an expected embedding is made, where the network takes one."""
        return self.denoiser.expected if isinstance(self.denoiser, GemmaDenoiser) else None
