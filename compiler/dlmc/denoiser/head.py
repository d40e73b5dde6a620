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

Embed = Callable[[Tensor, slice], Tensor]
"""From weights float32 [...,n] of a part of the vocabulary, and which, to [...,hidden]."""

# Widths of the bins that maxima and sums are taken of first: the first that divides a vocabulary.
_WIDTHS = (256, 128, 64)

_SUMS = 4  # of weights, weights * shifted, and the same two at the temperature


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
    bins = _in_bins(weights, _WIDTHS[0], 0.0)
    chosen, rest = _draw_bin(bins.sum(-1), uniform)
    inside = _pick([bins], chosen.unsqueeze(-1)).squeeze(-2)
    return chosen * _WIDTHS[0] + _first_beyond(inside, rest)


def _in_bins(values: Tensor, width: int, padding: float) -> Tensor:
    """Return [...,V] as [...,bins,width], the last bin filled up with ``padding``."""
    missing = -values.shape[-1] % width
    padded = functional.pad(values, (0, missing), value=padding) if missing else values
    return padded.reshape(*padded.shape[:-1], -1, width)


def _draw_bin(mass: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return which bin of ``mass`` [...,bins] is drawn, and how much of it is to be passed."""
    target = uniform * mass.sum(-1)
    chosen = _first_beyond(mass, target)
    before = functional.pad(mass.cumsum(-1), (1, 0)).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    return chosen, (target - before).clamp(min=0)


def _pick(parts: Sequence[Tensor], bins: Tensor) -> Tensor:
    """Return the bins [...,k] of parts [...,n,width] that lie behind one another, [...,k,width]."""
    start, found = 0, None
    for part in parts:
        count, width = part.shape[-2:]
        own = (bins - start).clamp(0, count - 1) if len(parts) > 1 else bins
        here = part.gather(-2, own.unsqueeze(-1).expand(*own.shape, width))
        found = here if found is None else torch.where((bins >= start).unsqueeze(-1), here, found)
        start += count
    if found is None:
        raise ValueError("there are no parts to pick from")
    return found


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


def _entropy(shifted_sum: Tensor, total: Tensor) -> Tensor:
    """Return the entropy [B,R], in nats, of weights = exp(shifted) that sum up to ``total``.

    Args:
        shifted_sum: the sum of weights * shifted.
        total: the sum of weights.
    """
    # With p = weights / total this is -sum(p log p), and no term of it is negative.
    return total.log() - shifted_sum / total


def _cool(shifted: Tensor, divisor: Tensor) -> Tensor:
    """Return [B,R,...] divided by the temperature [B,1]."""
    # At a tiny temperature a quotient would be infinite, and 0 times that is no number.
    return (shifted / divisor[..., None]).clamp(min=SUPPRESSED)


class Head(nn.Module):
    """Reduces logits to `HeadOutputs`.

    An engine's ``TopK`` over a whole vocabulary costs more than the product that makes the logits.
    So the best are looked for in the bins with the best maxima, which hold them.

    Args:
        vocab_size: V.
        candidates: K, at most V.
        suppressed: ids that must never be predicted, fewer than V.
        variant: ``guided`` combines pairs of rows first; ``logits`` hands out the raw logits.
        parts: into how many parts the vocabulary is cut, so that what is as large as the logits is
            made for one part after the other; at most the number of bins.
    """

    suppressed: Tensor

    def __init__(
        self,
        vocab_size: int,
        candidates: int,
        suppressed: Sequence[int],
        variant: HeadVariant = "plain",
        parts: int = 1,
    ) -> None:
        super().__init__()
        self.vocab_size, self.candidates = vocab_size, candidates
        self.suppressed_ids, self.variant = tuple(suppressed), variant
        self.width = next((one for one in _WIDTHS if vocab_size % one == 0), _WIDTHS[0])
        step = -(-vocab_size // (parts * self.width)) * self.width
        self.parts = tuple(
            slice(start, min(start + step, vocab_size)) for start in range(0, vocab_size, step)
        )
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
        logits: Tensor | Sequence[Tensor],
        temperature: Tensor,
        uniform: Tensor,
        guidance: Tensor | None = None,
        partner: Tensor | None = None,
        embed: Embed | None = None,
    ) -> HeadOutputs:
        """Reduce ``logits`` float32 [B,R,V], at ``temperature`` [B], with ``uniform`` [B,R].

        Logits come whole or as the parts that `parts` names. With ``guidance`` and ``partner``,
        see `guide`, it is the guided logits that are reduced. ``embed`` takes a part of weights
        [B,R,...] and which it is, and returns the sum of embeddings so weighted.
        """
        parts = self._parts(logits)
        if guidance is not None and partner is not None:
            parts = [guide(part, guidance, partner) for part in parts]
        allowed = [self._allowed(part, ids) for part, ids in zip(parts, self.parts, strict=True)]
        bins = [_in_bins(part, self.width, SUPPRESSED) for part in allowed]
        top_logits, top_ids = self._top(bins)
        best = top_logits[..., :1]
        greedy = (temperature <= 0)[:, None]
        divisor = torch.where(greedy, 1.0, temperature[:, None])
        sums, masses = self._sums(allowed, best, divisor, embed)
        total, shifted_sum, tempered_total, cooled_sum = (sums[..., i] for i in range(_SUMS))
        chosen, rest = _draw_bin(masses, uniform)
        inside = _pick(bins, chosen.unsqueeze(-1)).squeeze(-2)
        offset = _first_beyond(_cool(inside - best, divisor).exp(), rest)
        drawn = self._id(chosen, offset)
        drawn_logit = inside.gather(-1, offset.unsqueeze(-1)).squeeze(-1)
        return HeadOutputs(
            top_ids=top_ids,
            top_logits=top_logits,
            logsumexp=best.squeeze(-1) + total.log(),
            entropy=_entropy(shifted_sum, total),
            tempered_logsumexp=best.squeeze(-1) / divisor + tempered_total.log(),
            tempered_entropy=_entropy(cooled_sum, tempered_total),
            sampled_id=torch.where(greedy, top_ids[..., 0], drawn),
            sampled_logit=torch.where(greedy, top_logits[..., 0], drawn_logit),
            logits=torch.cat(parts, -1) if self.variant == "logits" else None,
            next_self_conditioning=None
            if embed is None
            else sums[..., _SUMS:] / tempered_total.unsqueeze(-1),
        )

    def _parts(self, logits: Tensor | Sequence[Tensor]) -> list[Tensor]:
        if isinstance(logits, Tensor):
            return [logits[..., part] for part in self.parts] if self.parts[1:] else [logits]
        return [*logits]

    def _allowed(self, part: Tensor, ids: slice) -> Tensor:
        """Return a part of the logits with the forbidden ones suppressed."""
        if not any(ids.start <= one < ids.stop for one in self.suppressed_ids):
            return part
        suppressed = self.suppressed[ids] if self.parts[1:] else self.suppressed
        return torch.where(suppressed, SUPPRESSED, part)

    def _id(self, chosen: Tensor, offset: Tensor) -> Tensor:
        """Return the id at an offset into a bin; what fills up the last one is not handed out."""
        found = chosen * self.width + offset
        return found.clamp(max=self.vocab_size - 1) if self.vocab_size % self.width else found

    def _top(self, bins: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the K best logits and their ids, both [B,R,K]."""
        if sum(part.shape[-2] for part in bins) <= self.candidates:
            top, flat = torch.cat(tuple(bins), -2).flatten(-2).topk(self.candidates)
            return top, flat.clamp(max=self.vocab_size - 1)
        maxima = torch.cat([part.amax(-1) for part in bins], -1)
        chosen = maxima.topk(self.candidates).indices
        top, flat = _pick(bins, chosen).flatten(-2).topk(self.candidates)
        return top, self._id(chosen.gather(-1, flat // self.width), flat % self.width)

    def _sums(
        self, allowed: Sequence[Tensor], best: Tensor, divisor: Tensor, embed: Embed | None
    ) -> tuple[Tensor, Tensor]:
        """Return sums over the vocabulary [B,R,...], and the tempered weight of each bin.

        The sums of a part stand in one tensor, to which those of the next part are added: so an
        engine that follows the results backwards finishes one part before it starts another.
        """
        sums, masses = None, []
        for part, ids in zip(allowed, self.parts, strict=True):
            shifted = part - best
            weights = shifted.exp()
            cooled = _cool(shifted, divisor)
            tempered = cooled.exp()
            mass, tempered_mass = (
                _in_bins(one, self.width, 0.0).sum(-1) for one in (weights, tempered)
            )
            masses.append(tempered_mass)
            own = [mass, weights * shifted, tempered_mass, tempered * cooled]
            found = [one.sum(-1, keepdim=True) for one in own]
            if embed is not None:
                found.append(embed(tempered, ids))
            joined = torch.cat(found, -1)
            sums = joined if sums is None else sums + joined
        if sums is None:
            raise ValueError("there are no logits")
        return sums, torch.cat(masses, -1)


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
        rows, parts = hidden.gather(1, index), self.head.parts
        whole = not parts[1:]
        logits = [self.denoiser.logits(rows, None if whole else part) for part in parts]
        return self.head(logits, temperature, uniform, guidance, partner, self._embed()), present

    def _embed(self) -> Embed | None:
        """Return how an expected embedding is made, where the network takes one."""
        return self.denoiser.expected if isinstance(self.denoiser, GemmaDenoiser) else None
