"""From the head's reduced outputs to one token and one confidence a position."""

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.samplers.base import Floats, Ints, Prediction
from dlmc_runtime.samplers.config import SamplerConfig


def predict(
    outputs: Outputs,
    row: int,
    count: int,
    config: SamplerConfig,
    *,
    tempered: bool,
    uniform: NDArray[np.float32],
) -> Prediction:
    """Read the first ``count`` head rows of ``row``.

    Args:
        outputs: the head's answer for a batch.
        row: which row of the batch.
        count: how many of its head rows are meant.
        config: temperature, top-k and top-p of the row.
        tempered: whether confidence is the probability after temperature and filters.
        uniform: float32 [count] in [0, 1), the draw of each position.
    """
    if config.top_k or config.top_p < 1.0:
        return _filtered(outputs, row, count, config, tempered=tempered, uniform=uniform)
    tokens = outputs.sampled_id[row, :count]
    logits = outputs.sampled_logit[row, :count].astype(np.float64)
    if tempered and config.temperature:
        confidence = np.exp(logits / config.temperature - outputs.tempered_logsumexp[row, :count])
    else:
        confidence = np.exp(logits - outputs.logsumexp[row, :count])
    return Prediction(tokens, confidence)


def _filtered(
    outputs: Outputs,
    row: int,
    count: int,
    config: SamplerConfig,
    *,
    tempered: bool,
    uniform: NDArray[np.float32],
) -> Prediction:
    """Draw among the top-k, then top-p candidates, in the order of SDAR's reference.

    Without top-k the nucleus is taken from the whole distribution and cut at the candidates the
    graph keeps.
    """
    temperature = config.temperature or 1.0
    ids = outputs.top_ids[row, :count]
    logits = outputs.top_logits[row, :count].astype(np.float64)
    scaled = logits / temperature
    if config.top_k:
        scaled = scaled[:, : config.top_k]
        weights = np.exp(scaled - scaled[:, :1])
        probability = weights / weights.sum(axis=1, keepdims=True)
    else:
        normaliser = outputs.tempered_logsumexp if config.temperature else outputs.logsumexp
        probability = np.exp(scaled - normaliser[row, :count, None])
    before = np.cumsum(probability, axis=1) - probability
    probability = np.where(before < config.top_p, probability, 0.0)
    probability /= probability.sum(axis=1, keepdims=True)
    picked = _draw(probability, uniform) if config.temperature else np.zeros(count, np.int64)
    chosen = picked[:, None]
    tokens: Ints = np.take_along_axis(ids, chosen, 1)[:, 0]
    if tempered:
        confidence: Floats = np.take_along_axis(probability, chosen, 1)[:, 0]
    else:
        confidence = np.exp(
            np.take_along_axis(logits, chosen, 1)[:, 0] - outputs.logsumexp[row, :count]
        )
    return Prediction(tokens, confidence)


def _draw(probability: Floats, uniform: NDArray[np.float32]) -> Ints:
    """Invert the cumulative distribution of each row at its uniform number."""
    cumulative = np.cumsum(probability, axis=1)
    drawn = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1)
    last = (probability > 0).sum(axis=1) - 1
    picked: Ints = np.minimum(drawn, last)
    return picked
