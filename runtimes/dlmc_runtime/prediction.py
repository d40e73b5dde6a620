"""From the head's reduced outputs to one token and one confidence a position."""

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.samplers.base import Candidates, Floats, Ints, Prediction, Sampler
from dlmc_runtime.samplers.config import SamplerConfig

# Dream adds it inside the logarithm of its entropy.
_DREAM_EPSILON = 1e-10


def predict(
    said: Outputs,
    config: SamplerConfig,
    sampler: type[Sampler],
    uniform: NDArray[np.float32],
    temperature: float | None = None,
) -> Prediction:
    """Read what the head said about the ``n`` positions of a block.

    Args:
        said: of one row: [n], and [n,K] for candidates.
        config: temperature, top-k and top-p of the row.
        sampler: says whether confidence is the probability after temperature and filters, and
            what else it needs.
        uniform: float32 [n] in [0, 1), the draw of each position.
        temperature: of this forward; None is that of ``config``.

    Raises:
        ValueError: it needs margins, and the head keeps a single candidate.
    """
    needs = sampler.asks_for(config)
    heat = config.temperature if temperature is None else temperature
    if "margin" in needs and said.top_logits.shape[1] < 2:
        raise ValueError("a margin needs two candidates, the head keeps one")
    if config.top_k or config.top_p < 1.0:
        tokens, confidence, weights = _filtered(said, config, sampler, uniform, heat)
        margin = weights[:, 0] - weights[:, 1:2].sum(axis=1)
        entropy = -(weights * np.log(weights + _DREAM_EPSILON)).sum(axis=1)
    else:
        tokens = said.sampled_id
        logits = said.sampled_logit.astype(np.float64)
        tempered = sampler.tempered and heat > 0
        divisor = heat if tempered else 1.0
        normaliser = said.tempered_logsumexp if tempered else said.logsumexp
        confidence = np.exp(logits / divisor - normaliser)
        entropy = said.tempered_entropy if tempered else said.entropy
        margin = confidence
        if "margin" in needs:
            two = np.exp(said.top_logits[:, :2] / np.float64(divisor) - normaliser[:, None])
            margin = -np.diff(two, axis=1)[:, 0]
    return Prediction(
        tokens,
        confidence,
        margin=margin if "margin" in needs else None,
        entropy=entropy.astype(np.float64) if "entropy" in needs else None,
        candidates=candidates(said) if "candidates" in needs else None,
    )


def candidates(said: Outputs) -> Candidates:
    """Return the best tokens of one row's positions."""
    return Candidates(
        said.top_ids, said.top_logits.astype(np.float64), said.logsumexp.astype(np.float64)
    )


def _filtered(
    said: Outputs,
    config: SamplerConfig,
    sampler: type[Sampler],
    uniform: NDArray[np.float32],
    heat: float,
) -> tuple[Ints, Floats, Floats]:
    """Draw among the candidates that top-k and top-p leave, in the sampler's order of the two.

    Without top-k the nucleus is taken from the whole distribution and cut at the candidates the
    graph keeps. The token that crosses top-p belongs to it, and so does one that follows where the
    probabilities before it add up to exactly top-p.

    Returns:
        Tokens, confidence, and the probabilities of the candidates, [n,K].
    """
    logits = said.top_logits.astype(np.float64)
    scaled = logits / (heat or 1.0)
    limit = config.top_k or logits.shape[1]
    if config.top_k and not sampler.nucleus_first:
        weights = np.exp(scaled - scaled[:, :1])
        weights[:, limit:] = 0.0
        weights /= weights.sum(axis=1, keepdims=True)
    else:
        normaliser = said.tempered_logsumexp if heat else said.logsumexp
        weights = np.exp(scaled - normaliser[:, None])
    before = np.cumsum(weights, axis=1) - weights
    weights = np.where(before <= config.top_p, weights, 0.0)
    weights[:, limit:] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    count = len(weights)
    picked = _draw(weights, uniform) if heat else np.zeros(count, np.int64)
    chosen = picked[:, None]
    tokens: Ints = np.take_along_axis(said.top_ids, chosen, 1)[:, 0]
    if sampler.tempered:
        return tokens, np.take_along_axis(weights, chosen, 1)[:, 0], weights
    own = np.take_along_axis(logits, chosen, 1)[:, 0] - said.logsumexp
    return tokens, np.exp(own), weights


def _draw(probability: Floats, uniform: NDArray[np.float32]) -> Ints:
    """Invert the cumulative distribution of each row at its uniform number."""
    cumulative = np.cumsum(probability, axis=1)
    drawn = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1)
    last = (probability > 0).sum(axis=1) - 1
    picked: Ints = np.minimum(drawn, last)
    return picked
