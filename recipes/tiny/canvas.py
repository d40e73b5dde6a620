"""Uniform-noise diffusion of canvases, the objective of DiffusionGemma.

A canvas is a stretch of the answer in which tokens have been replaced by random ones. The network
reads what comes before it causally, sees the canvas both ways, and names the clean token of every
position. Between two steps of decoding nothing remains but what the step before expected of each
position (self-conditioning), so training takes steps of its own sampler first, without a gradient,
and learns from where they lead.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dlmc.denoiser.attention import KeyValue
from dlmc.denoiser.gemma import GemmaDenoiser
from vocabulary import Encoded

LENGTH = 32
"""Positions of a canvas; the recipe's ``canvas_length``."""
VERSIONS = 2  # noisy canvases of a row: they share the prompt's keys and values
_ENTROPY_BOUND = 0.1
_COLDEST, _HOTTEST = 0.4, 0.8


@dataclass(frozen=True)
class CanvasBatch:
    """One micro-batch of B rows with N noisy canvases of C tokens each.

    ``context`` is int64 [B,L], ``lengths`` int64 [B,N], how much of it each canvas sees, ``canvas``
    int64 [B,N*C], ``targets`` the clean tokens in its shape with -100 where none counts. ``steps``
    of the sampler at ``temperature`` come first; their draws follow from ``seed``.
    """

    context: Tensor
    lengths: Tensor
    canvas: Tensor
    targets: Tensor
    steps: int
    temperature: float
    seed: int


def corrupt_canvases(
    encoded: list[Encoded],
    vocab_size: int,
    pad: int,
    rng: np.random.Generator,
    *,
    most_steps: int,
) -> CanvasBatch:
    """Put noise on canvases of a batch.

    Half of the canvases are all noise, as decoding begins; in the others each token is replaced
    with a probability drawn per canvas. What follows the end of turn is all the same token: a
    quarter of it counts.

    Args:
        encoded: token ids of every prompt and answer; an answer's n-th canvas is version n, n plus
            the number of its canvases, and so on.
        vocab_size: how many tokens noise is drawn from.
        pad: the token after the end of turn.
        rng: source of every draw.
        most_steps: how many steps of the sampler may precede the one learnt from.
    """
    rows = len(encoded)
    counts = [-(-len(problem.answer) // LENGTH) for problem in encoded]
    contexts = [
        problem.prompt + problem.answer[: (count - 1) * LENGTH]
        for problem, count in zip(encoded, counts, strict=True)
    ]
    context = np.full((rows, max(map(len, contexts))), pad)
    lengths = np.empty((rows, VERSIONS), dtype=np.int64)
    clean = np.full((rows, VERSIONS, LENGTH), pad)
    counted = rng.random(clean.shape) < 0.25
    for row, problem in enumerate(encoded):
        context[row, : len(contexts[row])] = contexts[row]
        for version in range(VERSIONS):
            start = version % counts[row] * LENGTH
            part = problem.answer[start : start + LENGTH]
            lengths[row, version] = len(problem.prompt) + start
            clean[row, version, : len(part)] = part
            counted[row, version, : len(part)] = True
    level = rng.random((rows, VERSIONS, 1))
    level[rng.random(level.shape) < 0.5] = 1.0
    noisy = np.where(
        rng.random(clean.shape) < level, rng.integers(vocab_size, size=clean.shape), clean
    )
    return CanvasBatch(
        torch.from_numpy(context),
        torch.from_numpy(lengths),
        torch.from_numpy(noisy.reshape(rows, -1)),
        torch.from_numpy(np.where(counted, clean, -100).reshape(rows, -1)),
        steps=int(rng.integers(most_steps + 1)),
        temperature=float(rng.uniform(_COLDEST, _HOTTEST)),
        seed=int(rng.integers(2**62)),
    )


def initialise(denoiser: GemmaDenoiser) -> None:
    """Draw weights from a normal distribution, with norms that keep a deep stack calm.

    Attention has no scale but its norms; branches end in one, which narrows them.
    """
    branches = 2 * denoiser.config.num_hidden_layers
    for name, weight in denoiser.named_parameters():
        if name.endswith("router.proj.weight"):
            nn.init.normal_(weight)
        elif weight.ndim > 1:
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            nn.init.constant_(weight, weight.shape[0] ** -0.25)
        elif name.endswith(
            ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
        ):
            nn.init.constant_(weight, branches**-0.5)


def encode(denoiser: GemmaDenoiser, context: Tensor) -> list[KeyValue]:
    """Return keys and values of every layer for ``context`` int64 [B,L]."""
    config = denoiser.config
    rows, length = context.shape
    at = torch.arange(length)
    causal = at[None, :] <= at[:, None]
    near = causal & (at[None, :] >= at[:, None] - (config.sliding_context or 0))
    shapes = [config.cache_shape(kind) for kind in config.kinds]
    empty = [torch.zeros(rows, heads, 0, size) for heads, size in shapes]
    present: list[KeyValue]
    _, present = denoiser(
        context,
        at.expand(rows, length),
        causal[None, None],
        [(one, one) for one in empty],
        sliding_attention_mask=near[None, None],
        self_conditioning=torch.zeros(rows, length, config.hidden_size),
        denoising=torch.zeros(rows, dtype=torch.bool),
    )
    return present


def denoise(
    denoiser: GemmaDenoiser,
    past: list[KeyValue],
    lengths: Tensor,
    canvas: Tensor,
    conditioning: Tensor,
) -> Tensor:
    """Return float32 logits [B,N*C,V] of noisy canvases, each blind to the others.

    Args:
        denoiser: the network.
        past: keys and values of the context, of L positions in every layer.
        lengths: int64 [B,N], how much of the context each canvas sees.
        canvas: int64 [B,N*C].
        conditioning: float32 [B,N*C,hidden], what the step before expected.
    """
    rows = canvas.shape[0]
    at = torch.arange(canvas.shape[1])
    own = (at[None, :] // LENGTH == at[:, None] // LENGTH).expand(rows, 1, -1, -1)
    start = lengths.repeat_interleave(LENGTH, dim=1)
    key = torch.arange(past[0][0].shape[2])
    before = key < start[:, None, :, None]
    near = before & (key >= start[:, None, :, None] - (denoiser.config.sliding_context or 0))
    hidden, _ = denoiser(
        canvas,
        start + at % LENGTH,
        torch.cat((before, own), dim=-1),
        past,
        sliding_attention_mask=torch.cat((near, own), dim=-1),
        self_conditioning=conditioning,
        denoising=torch.ones(rows, dtype=torch.bool),
    )
    return denoiser.logits(hidden)


def advance(
    logits: Tensor, temperature: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Take one step of the sampler.

    Args:
        logits: float32 [B,N*C,V].
        temperature: what they are divided by.
        generator: source of the draws.

    Returns:
        The next canvases, int64 [B,N*C]: of each canvas the surest positions hold a token drawn
        from the prediction, as many as their entropies stay within the bound, and all others a
        random one. And the probabilities, float32 [B,N*C,V].
    """
    scaled = (logits / temperature).log_softmax(-1)
    probabilities = scaled.exp()
    drawn = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator)
    entropy = -(probabilities * scaled).sum(-1).unflatten(1, (-1, LENGTH))
    ascending, order = entropy.sort(-1)
    within = ascending.cumsum(-1) - ascending <= _ENTROPY_BOUND
    accepted = torch.zeros_like(within).scatter(-1, order, within).flatten(1)
    noise = torch.randint(logits.shape[-1], accepted.shape, generator=generator)
    return torch.where(accepted, drawn.view_as(noise), noise), probabilities


class CanvasLoss:
    """The loss of a batch, from where steps of the sampler lead."""

    def __init__(self, denoiser: GemmaDenoiser) -> None:
        self._denoiser = denoiser

    def __call__(self, batch: CanvasBatch) -> Tensor:
        """Return the mean cross-entropy over the tokens that count."""
        denoiser, canvas = self._denoiser, batch.canvas
        generator = torch.Generator().manual_seed(batch.seed)
        conditioning = torch.zeros(*canvas.shape, denoiser.config.hidden_size)
        past = encode(denoiser, batch.context)
        with torch.no_grad():
            seen = [(key.detach(), value.detach()) for key, value in past]
            for _ in range(batch.steps):
                logits = denoise(denoiser, seen, batch.lengths, canvas, conditioning)
                canvas, probabilities = advance(logits, batch.temperature, generator)
                conditioning = denoiser.expected(probabilities)
        logits = denoise(denoiser, past, batch.lengths, canvas, conditioning)
        return functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
