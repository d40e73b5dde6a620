"""Blocks, predictions and whole denoised blocks for the tests of samplers."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dlmc_runtime import samplers
from dlmc_runtime.samplers.base import (
    BlockState,
    Candidates,
    EditIds,
    Floats,
    Ints,
    Prediction,
    Sampler,
)
from dlmc_runtime.samplers.config import SamplerConfig

Positions = list[int]
EDITS = EditIds(mask=-1, delete=-2, split=-3)  # out of any vocabulary


def build(name: str, **options: Any) -> Sampler:
    """Return a sampler with these options."""
    return samplers.build(SamplerConfig(name=name, **options))


def state(
    masked: Any,
    step: int = 0,
    *,
    masks: int | None = None,
    tokens: Sequence[int] | None = None,
    given: Any = None,
    edits: EditIds | None = None,
) -> BlockState:
    """Return a block of which nothing was given, unless it says so."""
    positions = np.array(masked, bool)
    return BlockState(
        masked=positions,
        step=step,
        masks=int(positions.sum()) if masks is None else masks,
        tokens=np.zeros(len(positions), np.int64) if tokens is None else np.array(tokens),
        given=np.zeros(len(positions), bool) if given is None else np.array(given, bool),
        edits=edits,
    )


def prediction(confidence: Any, tokens: Any = None, **parts: Any) -> Prediction:
    """Return a prediction of these confidences, for tokens that are all 0 by default."""
    sure = np.array(confidence, np.float64)
    said = np.zeros(len(sure), np.int64) if tokens is None else np.array(tokens, np.int64)
    numbers: dict[str, Any] = {
        name: part if isinstance(part, Candidates) else np.array(part, np.float64)
        for name, part in parts.items()
    }
    return Prediction(said, sure, **numbers)


def softmax(logits: Floats) -> Floats:
    """Return the probabilities [n,V] of logits [n,V]."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability: Floats = weights / weights.sum(axis=1, keepdims=True)
    return probability


def candidates(logits: Floats, count: int | None = None) -> Candidates:
    """Return the best ``count`` tokens of each position of logits [n,V]; all by default."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    best = logits.max(axis=1)
    logsumexp = best + np.log(np.exp(logits - best[:, None]).sum(axis=1))
    return Candidates(ids, np.take_along_axis(logits, ids, 1), logsumexp)


def greedy(logits: Floats, count: int | None = None) -> Prediction:
    """Return what the head says about logits [n,V] at temperature 0."""
    found = candidates(logits, count)
    return Prediction(found.ids[:, 0], np.exp(found.logprobs[:, 0]), candidates=found)


def select(sampler: Sampler, said: Prediction, block: BlockState) -> Positions:
    """Return the positions that a sampler commits, as the loop asks for them."""
    return np.flatnonzero(sampler.select(sampler.adjust(said, block), block)).tolist()


def denoise(
    sampler: Sampler, masked: Sequence[Any], predict: Callable[[int], Prediction]
) -> list[Positions]:
    """Denoise a block as the loop does: idle steps left out, all committed at the last of `steps`.

    Returns:
        What each forward committed.

    Raises:
        RuntimeError: there are still masks after a thousand forwards.
    """
    history: list[Positions] = []
    open_, step = np.array(masked, bool), 0
    given, masks = ~open_, int(open_.sum())
    steps = sampler.config.steps
    for forward in range(1000):
        while open_.any() and sampler.idle(block := BlockState(open_, step, masks, None, given)):
            step += 1
        if not open_.any():
            return history
        said = predict(forward)
        block = BlockState(open_.copy(), step, masks, said.tokens.copy(), given)
        said = sampler.adjust(said, block)
        chosen = sampler.select(said, block)
        reopened = sampler.reopen(said, block, chosen)
        if steps is not None and sampler.limited and step + 1 >= steps:
            chosen, reopened = open_.copy(), reopened & False
        history.append(np.flatnonzero(chosen).tolist())
        open_ = (open_ & ~chosen) | reopened
        step += 1
    raise RuntimeError("the block does not end")


def rewrite(
    sampler: Sampler,
    tokens: Sequence[int],
    edits: EditIds,
    predict: Callable[[Ints], Prediction],
    given: Sequence[bool] = (),
) -> list[list[int]]:
    """Let a sampler rewrite a block until it is final, as the loop does.

    Args:
        sampler: one that rewrites.
        tokens: the block as it begins; ``edits.mask`` where it is masked.
        edits: the ids that delete and insert, and the mask's.
        predict: what the head says about a block's tokens, int64 [n].
        given: the positions that were given; those that are no masks by default.

    Returns:
        The block before the first forward and after each, as `Rewritten.masked` has it.

    Raises:
        RuntimeError: it is not final after two thousand forwards.
    """
    canvas = np.array(tokens, np.int64)
    masked = canvas == edits.mask
    pinned, masks = np.array(given or ~masked, bool), int(masked.sum())
    history = [canvas.tolist()]
    for step in range(2000):
        said = predict(canvas)
        block = BlockState(masked.copy(), step, masks, canvas.copy(), pinned, edits)
        after = sampler.rewrite(sampler.adjust(said, block), block)
        canvas, masked = after.tokens, after.masked
        if ((canvas == edits.mask) & ~pinned != masked).any():
            raise RuntimeError("masks and tokens do not agree")
        history.append(canvas.tolist())
        if after.final:
            return history
    raise RuntimeError("the block does not end")
