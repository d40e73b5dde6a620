"""The loop of the reference implementations, in torch: what an engine's speed is compared with.

`full` is ML-GSAI/LLaDA's ``generate.py`` with Fast-dLLM's threshold: every forward runs over the
whole canvas and hands all logits to the sampler; `dlmc.bench.torch_cache` adds Fast-dLLM's caches.
`block` is JetAstra/SDAR's ``generate.py`` with its cache. Weights are those of the bundle, in one
precision throughout.

The baseline is the fast form of the references, so that a ratio to it is no flattery: head and
layers compute in the precision of the weights (an engine's head computes in float32), attention
gets no mask where everything is visible, nothing is drawn at temperature 0, and, as in an engine,
a row ends with its text and does not store its last block. What the references do in float64 or
over the whole vocabulary stays as it is. The one addition is that suppressed ids are forbidden.
"""

import time
from collections.abc import Generator as Turns
from collections.abc import Iterator
from dataclasses import fields
from typing import Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from dlmc.bench.generation import Answer
from dlmc.bench.timing import Forward, Kind
from dlmc.denoiser.attention import KeyValue
from dlmc.denoiser.denoiser import Denoiser
from dlmc.denoiser.rope import Rope
from dlmc.validate.reference import load_reference
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Manifest, Precision
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.low_confidence_dynamic import DEFAULT_THRESHOLD
from dlmc_runtime.samplers.schedules import quota

Confidence = Literal["float64", "own"]

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SAMPLERS = {
    "full": ("low_confidence",),
    "block": ("low_confidence_static", "low_confidence_dynamic", "sequential"),
}
_CACHES = {"full": (None, "none", "prefix", "dual"), "block": (None,)}
_COMMON = {"name", "steps", "threshold", "temperature", "block_length", "cache"}
_HEEDED = {"full": _COMMON, "block": _COMMON | {"top_k", "top_p"}}
_ALONE = "leave out --compare"
_NO_MASK = cast("Tensor", None)  # what torch's attention takes where everything is visible


def check(manifest: Manifest, sampler: SamplerConfig) -> None:
    """Refuse what the reference loops do not do.

    Raises:
        UsageError: the message says what differs.
    """
    other = [name for name, differs in _others(manifest).items() if differs]
    if other:
        raise UsageError(
            f"there is no torch loop for {manifest.family} with {', '.join(other)}",
            _ALONE,
        )
    regime = manifest.attention.regime
    known = _SAMPLERS.get(regime, ())
    if sampler.name not in known:
        raise UsageError(
            f"there is no torch loop for the sampler {sampler.name} of the regime {regime}",
            f"choose one of {', '.join(known)}" if known else _ALONE,
        )
    if sampler.cache not in _CACHES[regime]:
        raise UsageError(
            f"there is no torch loop for the cache {sampler.cache} of the regime {regime}",
            "leave out --cache or --compare",
        )
    for field in fields(sampler):
        if field.name in _HEEDED[regime] or getattr(sampler, field.name) == field.default:
            continue
        raise UsageError(
            f"the torch loop of the regime {regime} knows no {field.name}",
            "compare with --steps or --threshold",
        )


def _others(manifest: Manifest) -> dict[str, bool]:
    """Return, by name, whether a model does what the loops leave out."""
    attention, inputs = manifest.attention, {spec.name for spec in manifest.inputs}
    return {
        "a sliding window": attention.sliding_window is not None,
        "an adapter": "adapter" in inputs,
        "shifted logits": manifest.shift != 0,
        "blocks seeded by the one before": attention.seeded,
        "blocks counted from the answer": attention.aligned_to == "answer",
        "a last block that is cut": attention.last_block == "cut" and attention.regime != "full",
    }


class TorchLoop:
    """A bundle's weights in torch, and the loop around them.

    Args:
        denoiser: the network, in the precision to measure.
        manifest: of the bundle.
        confidence: precision of LLaDA's confidences. ``float64`` is what Fast-dLLM and LLaDA's
            first releases compute; ``own`` is the precision of the logits, as LLaDA's later
            releases do, which is faster.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        manifest: Manifest,
        confidence: Confidence = "float64",
    ) -> None:
        self.denoiser, self.manifest = denoiser.eval(), manifest
        self.confidence = confidence

    @classmethod
    def load(
        cls,
        bundle: Bundle,
        precision: Precision,
        confidence: Confidence = "float64",
    ) -> "TorchLoop":
        """Load a bundle's weights; raises `BundleError` and `CheckpointError`."""
        denoiser = load_reference(bundle, ()).module.denoiser.to(_DTYPES[precision])
        for module in denoiser.modules():
            if isinstance(module, Rope):  # its frequencies are float32 in every precision
                module.inv_freq = module.constants()["inv_freq"]
        if not isinstance(denoiser, Denoiser):
            raise UsageError(f"there is no torch loop for {bundle.manifest.family}", _ALONE)
        return cls(denoiser, bundle.manifest, confidence)

    def logits(
        self, ids: Tensor, start: int, past: list[KeyValue], mask: Tensor = _NO_MASK
    ) -> tuple[Tensor, list[KeyValue]]:
        """Run the network.

        Args:
            ids: int64 [1,T].
            start: position of the first of them.
            past: keys and values of every layer.
            mask: bool [1,1,T,C+T], or None where everything is visible.

        Returns:
            Logits [1,T,V] of every position, and the positions' own keys and values.
        """
        positions = torch.arange(start, start + ids.shape[1])[None]
        hidden, present = self.denoiser(ids, positions, mask, past)
        tied = self.denoiser.config.tie_word_embeddings
        head = self.denoiser.embed_tokens if tied else self.denoiser.lm_head
        return functional.linear(hidden, head.weight), present

    def empty(self) -> list[KeyValue]:
        """Return the cache of a row that has committed nothing."""
        config = self.denoiser.config
        shape = (1, config.num_key_value_heads, 0, config.head_dim)
        one = torch.empty(shape, dtype=self.denoiser.embed_tokens.weight.dtype)
        return [(one, one)] * config.num_hidden_layers

    def start(self, request: Request) -> "TorchRow":
        """Begin one answer; raises `UsageError` as `check`."""
        check(self.manifest, request.sampler)
        if self.manifest.attention.regime != "full":
            return _BlockRow(self, request)
        if request.sampler.cache in (None, "none"):
            return FullRow(self, request)
        from dlmc.bench.torch_cache import CachedRow

        return CachedRow(self, request)


class TorchContestant:
    """The torch loop as a contestant of a race."""

    def __init__(self, name: str, loop: TorchLoop) -> None:
        self.name, self.loop = name, loop

    def turns(self, request: Request) -> Turns[bool, None, Answer]:
        """Yield after each denoising whether the answer's first block is final."""
        row, forwards = self.loop.start(request), []
        for forward in row.steps():
            forwards.append(forward)
            if forward.kind in ("denoise", "refresh"):
                yield row.first_block
        return Answer(tuple(row.answer), tuple(forwards))


class TorchRow:
    """One answer in the making; `steps` makes its forwards, one a turn."""

    def __init__(self, loop: TorchLoop, request: Request) -> None:
        self.loop, self.request, self.config = loop, request, request.sampler
        attention, self.tokens = loop.manifest.attention, loop.manifest.tokens
        self.block_length = request.sampler.block_length or attention.block_length
        self.prompt_length = len(request.prompt)
        self.answer_end = self.prompt_length + request.max_new_tokens
        self.random = torch.Generator().manual_seed(request.seed)
        self.canvas = torch.full((self.length(),), self.tokens.filler)
        self.canvas[: self.prompt_length] = torch.tensor(request.prompt)
        self.masked = torch.arange(len(self.canvas)) >= self.prompt_length
        self.present: list[KeyValue] = []

    def length(self) -> int:
        """Return the length of the canvas."""
        raise NotImplementedError

    def steps(self) -> Iterator[Forward]:
        """Make one forward after the other until the row is done."""
        raise NotImplementedError

    def sample(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return a token and its confidence for every row of ``logits`` [T,V]."""
        raise NotImplementedError

    @property
    def answer(self) -> list[int]:
        """The final tokens, up to and without the first stop id."""
        left = self.masked[: self.answer_end].nonzero()
        known = int(left[0]) if len(left) else self.answer_end
        ids: list[int] = self.canvas[self.prompt_length : known].tolist()
        stop = self.request.stop.ids
        return ids[: next((i for i, token in enumerate(ids) if token in stop), len(ids))]

    @property
    def finished(self) -> bool:
        """Whether the text is known: the answer is full or holds a stop id."""
        if not self.masked[: self.answer_end].any():
            return True
        left = int(self.masked[: self.answer_end].nonzero()[0])
        return len(self.answer) < left - self.prompt_length

    @property
    def first_block(self) -> bool:
        """Whether every token of the answer's first block is final."""
        end = self.prompt_length + self.block_length
        if self.loop.manifest.attention.regime != "full":
            end -= self.prompt_length % self.block_length
        return not self.masked[: min(end, self.answer_end)].any()

    def denoise(
        self, start: int, end: int, window: slice, past: list[KeyValue], step: int
    ) -> Forward:
        """Run positions ``start`` to ``end`` and fix some of those in ``window``.

        Their keys and values are kept as ``present``.
        """
        began = time.perf_counter()
        logits, self.present = self.loop.logits(self.canvas[None, start:end], start, past)
        seconds = time.perf_counter() - began
        logits[..., list(self.tokens.suppressed)] = -torch.inf
        found, confidence = self.sample(logits[0])
        inside = slice(window.start - start, window.stop - start)
        chosen = self.choose(confidence[inside], self.masked[window], step)
        self.canvas[window][chosen] = found[inside][chosen]
        self.masked[window][chosen] = False
        return Forward("denoise", end - start, seconds)

    def choose(self, confidence: Tensor, masked: Tensor, step: int) -> Tensor:
        """Return bool [n]: which masked positions of the block to fix."""
        scores = torch.where(masked, confidence, -torch.inf)
        scheduled = min(self.scheduled(masked, step), int(masked.sum()))
        if self.config.name == "sequential":
            return masked & (masked.cumsum(0) <= scheduled)
        best = torch.zeros_like(masked)
        # In the order of positions at ties, which topk leaves to chance.
        best[scores.sort(descending=True, stable=True).indices[:scheduled]] = True
        if self.config.name == "low_confidence_dynamic":
            sure = scores > (self.config.threshold or DEFAULT_THRESHOLD)
            return sure if int(sure.sum()) >= scheduled else best
        if self.config.name == "low_confidence" and self.config.threshold is not None:
            return best | (scores >= self.config.threshold)
        return best

    def scheduled(self, masked: Tensor, step: int) -> int:
        """Return how many positions this step of the block fixes."""
        raise NotImplementedError


class FullRow(TorchRow):
    """LLaDA: no cache, and the sampler sees the logits of the whole canvas."""

    def length(self) -> int:
        """Return the length of prompt and answer."""
        return self.answer_end

    @torch.inference_mode()
    def steps(self) -> Iterator[Forward]:
        """Make one forward after the other until the row is done."""
        past = self.loop.empty()
        for start in range(self.prompt_length, self.answer_end, self.block_length):
            window = slice(start, min(start + self.block_length, self.answer_end))
            self.masks, step = window.stop - start, 0
            while self.masked[window].any():
                yield self.denoise(0, self.answer_end, window, past, step)
                step += 1
                if self.finished:
                    return

    def sample(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return a token and its confidence for every row of ``logits`` [T,V]."""
        if self.config.temperature:
            # Gumbel noise in float64, arXiv 2409.02908.
            wide = logits.to(torch.float64)
            noise = torch.empty_like(wide).uniform_(generator=self.random)
            tokens = (wide.exp() / (-noise.log()) ** self.config.temperature).argmax(-1)
        else:
            tokens = logits.argmax(-1)
        wide = logits.to(torch.float64) if self.loop.confidence == "float64" else logits
        confidence = wide.softmax(-1).gather(-1, tokens[:, None])[:, 0]
        return tokens, confidence

    def scheduled(self, masked: Tensor, step: int) -> int:
        """Return how many positions this step of the block fixes."""
        if self.config.threshold is not None:
            return 1
        return quota(self.masks, self.config.steps or len(masked), step)


class _BlockRow(TorchRow):
    """SDAR: an exact cache of the blocks before, and the sampler sees the block's logits."""

    def length(self) -> int:
        return -(-self.answer_end // self.block_length) * self.block_length

    @torch.inference_mode()
    def steps(self) -> Iterator[Forward]:
        past, size = self.loop.empty(), self.block_length
        prefix = self.prompt_length // size * size
        if prefix:
            blocks = torch.arange(prefix) // size
            mask = (blocks[:, None] >= blocks)[None, None]
            yield self._store("prefill", 0, prefix, past, mask)
        for start in range(prefix, len(self.canvas), size):
            window, step = slice(start, start + size), 0
            while self.masked[window].any():
                yield self.denoise(start, start + size, window, past, step)
                step += 1
                if self.finished:
                    return
            yield self._store("commit", start, start + size, past)

    def _store(
        self,
        kind: Kind,
        start: int,
        end: int,
        past: list[KeyValue],
        mask: Tensor = _NO_MASK,
    ) -> Forward:
        """Run final positions and append their keys and values to ``past``."""
        began = time.perf_counter()
        _, present = self.loop.logits(self.canvas[None, start:end], start, past, mask)
        seconds = time.perf_counter() - began
        for layer, (key, value) in enumerate(present):
            keys, values = past[layer]
            past[layer] = torch.cat((keys, key), 2), torch.cat((values, value), 2)
        return Forward(kind, end - start, seconds)

    def sample(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        scaled = logits / config.temperature if config.temperature not in (0, 1) else logits
        if config.top_k:
            least = scaled.topk(config.top_k).values[:, -1:]
            scaled = torch.where(scaled < least, -torch.inf, scaled)
        if config.top_p < 1:
            ranked, order = scaled.sort(descending=True)
            probability = ranked.softmax(-1)
            outside = probability.cumsum(-1) - probability > config.top_p
            scaled = scaled.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
        probability = scaled.softmax(-1)
        if config.temperature:
            tokens = probability.multinomial(1, generator=self.random)
        else:
            tokens = probability.argmax(-1, keepdim=True)
        return tokens[:, 0], probability.gather(-1, tokens)[:, 0]

    def scheduled(self, masked: Tensor, step: int) -> int:
        return quota(len(masked), self.config.steps or len(masked), step)
