"""From the head's reduced outputs to one token and one confidence a position."""

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.samplers.base import Candidates, Choices, Floats, Ints, Prediction, Sampler
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
        tokens, confidence, weights = _drawn(said, config, sampler, uniform, heat)
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


# Below this a probability counts as this: a logarithm of nothing has no order.
_TINY = 1e-30


def choices(
    said: Outputs,
    config: SamplerConfig,
    sampler: type[Sampler],
    vocabulary: int,
    heat: float = 0.0,
    uniform: Floats | None = None,
) -> Choices:
    """Return what a constraint chooses from at the ``n`` positions of a block.

    With a temperature the candidates' scores are log-probabilities after temperature and filters
    plus Gumbel noise: the best of them alone is a draw from them, and the best of all ways through
    a block is a draw of a way, up to what ways have in common (perturb-and-MAP, Papandreou and
    Yuille, 2011).

    Args:
        said: of one row.
        config: top-k and top-p of the row.
        sampler: says whether confidence is taken after temperature and filters.
        vocabulary: how many tokens there are.
        heat: the temperature of this forward.
        uniform: float64 [n,K] in [0, 1), the draws; None draws nothing.
    """
    plain = candidates(said).logprobs
    if config.top_k or config.top_p < 1.0:
        weights = _filtered(said, config, sampler, heat)
    elif heat:
        scaled = said.top_logits.astype(np.float64) / heat
        weights = np.exp(scaled - said.tempered_logsumexp.astype(np.float64)[:, None])
    else:
        weights = np.exp(plain)
    chances = weights if sampler.tempered else np.exp(plain)
    others = max(vocabulary - weights.shape[1], 1)
    floor = np.log(np.maximum((1.0 - weights.sum(1)) / others, _TINY))
    scores = np.log(np.maximum(weights, _TINY))
    # What a filter leaves out counts no more than what is no candidate.
    scores = np.where(weights > 0, scores, floor[:, None])
    if uniform is not None:
        scores -= np.log(-np.log(np.clip(uniform, np.finfo(np.float64).tiny, None)))
    rest = np.maximum(1.0 - chances.sum(1), 0.0) / others
    return Choices(said.top_ids, scores, chances, floor, rest)


def _drawn(
    said: Outputs,
    config: SamplerConfig,
    sampler: type[Sampler],
    uniform: NDArray[np.float32],
    heat: float,
) -> tuple[Ints, Floats, Floats]:
    """Draw among the candidates that top-k and top-p leave.

    Returns:
        Tokens, confidence, and the probabilities of the candidates, [n,K].
    """
    weights = _filtered(said, config, sampler, heat)
    picked = _draw(weights, uniform) if heat else np.zeros(len(weights), np.int64)
    chosen = picked[:, None]
    tokens: Ints = np.take_along_axis(said.top_ids, chosen, 1)[:, 0]
    if sampler.tempered:
        return tokens, np.take_along_axis(weights, chosen, 1)[:, 0], weights
    logits = np.take_along_axis(said.top_logits, chosen, 1)[:, 0].astype(np.float64)
    return tokens, np.exp(logits - said.logsumexp), weights


def _filtered(said: Outputs, config: SamplerConfig, sampler: type[Sampler], heat: float) -> Floats:
    """Return the probabilities that top-k and top-p leave, in the sampler's order of the two.

    Without top-k the nucleus is taken from the whole distribution and cut at the candidates the
    graph keeps. The token that crosses top-p belongs to it, and so does one that follows where the
    probabilities before it add up to exactly top-p. They are float64 [n,K].
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
    kept: Floats = weights / weights.sum(axis=1, keepdims=True)
    return kept


def _draw(probability: Floats, uniform: NDArray[np.float32]) -> Ints:
    """Invert the cumulative distribution of each row at its uniform number."""
    cumulative = np.cumsum(probability, axis=1)
    drawn = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1)
    last = (probability > 0).sum(axis=1) - 1
    picked: Ints = np.minimum(drawn, last)
    return picked
