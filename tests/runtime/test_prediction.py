"""Candidates, draws and confidences against a plain float64 computation over the vocabulary."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlmc.denoiser.head import Head
from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.prediction import predict
from dlmc_runtime.samplers.config import SamplerConfig

VOCAB, ROWS = 12, 5
SUPPRESSED = (3, 7)
CANDIDATES = VOCAB - len(SUPPRESSED)
EDGES = (0.0, float(np.nextafter(np.float32(1), np.float32(0))))


def outputs(logits, temperature, uniform, candidates=CANDIDATES):
    """Run the real head over float32 logits [R,V]."""
    head = Head(logits.shape[1], candidates, SUPPRESSED)
    with torch.inference_mode():
        found = head(
            torch.from_numpy(logits[None]),
            torch.tensor([temperature], dtype=torch.float32),
            torch.from_numpy(uniform[None]),
        )
    return Outputs(*(value.numpy() for value in found[:8]))


def naive(logits, config):
    """Return the token distribution [R,V] of the row, float64, filters applied."""
    scaled = logits.astype(np.float64) / (config.temperature or 1.0)
    scaled[:, list(SUPPRESSED)] = -np.inf
    for row in scaled:
        order = np.argsort(-row, kind="stable")
        if config.top_k:
            row[order[config.top_k :]] = -np.inf
        probability = np.exp(row - row.max())
        probability /= probability.sum()
        total = 0.0
        for token in order:  # the nucleus keeps the token that crosses top_p
            if total >= config.top_p < 1:  # a sum of everything may round up to 1 too early
                row[token] = -np.inf
            total += probability[token]
    probability = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return probability / probability.sum(axis=1, keepdims=True)


def plain(logits):
    """Return the unfiltered, untempered distribution [R,V], float64."""
    return naive(logits, SamplerConfig())


def some_logits(seed, scale=3.0):
    return (np.random.default_rng(seed).normal(size=(ROWS, VOCAB)) * scale).astype(np.float32)


def run(logits, config, uniform, *, tempered=True):
    uniform = np.asarray(uniform, np.float32)
    out = outputs(logits, config.temperature, uniform)
    return predict(out, 0, len(logits), config, tempered=tempered, uniform=uniform)


CONFIGS = st.builds(
    SamplerConfig,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, CANDIDATES),
    top_p=st.sampled_from([0.05, 0.4, 0.77, 0.95, 1.0]),
)
UNIFORM = st.sampled_from(EDGES) | st.floats(0, EDGES[1], width=32)


@given(CONFIGS, st.integers(0, 1000), st.lists(UNIFORM, min_size=ROWS, max_size=ROWS))
def test_tokens_and_confidence_follow_the_distribution(config, seed, uniform):
    logits = some_logits(seed)
    wanted = naive(logits, config)
    for tempered in (True, False):
        found = run(logits, config, uniform, tempered=tempered)
        assert found.tokens.dtype == np.int64
        own = wanted[np.arange(ROWS), found.tokens]
        assert (own > 0).all()
        assert not np.isin(found.tokens, SUPPRESSED).any()
        untempered = plain(logits)[np.arange(ROWS), found.tokens]
        expected = own if tempered else untempered
        np.testing.assert_allclose(found.confidence, expected, rtol=2e-5, atol=1e-7)
        if config.temperature == 0:
            assert found.tokens.tolist() == wanted.argmax(axis=1).tolist()


@pytest.mark.parametrize("uniform", EDGES)
@pytest.mark.parametrize("top_k", [0, 1, 3, CANDIDATES])
@pytest.mark.parametrize("top_p", [0.5, 1.0])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(uniform, top_k, top_p):
    logits = some_logits(1)
    logits[:, 5] = -200.0  # its probability is 0 in float32 and 0 for a draw
    logits[2] = -300.0
    logits[2, 9] = 0.0  # one token holds everything
    config = SamplerConfig(temperature=1.0, top_k=top_k, top_p=top_p)
    found = run(logits, config, np.full(ROWS, uniform))
    assert (naive(logits, config)[np.arange(ROWS), found.tokens] > 1e-80).all()
    assert found.tokens[2] == 9
    assert not np.isin(found.tokens, SUPPRESSED).any()


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (4, 1.0), (0, 0.8), (6, 0.7)])
def test_draws_are_as_frequent_as_they_are_probable(top_k, top_p):
    config = SamplerConfig(temperature=0.9, top_k=top_k, top_p=top_p)
    count = 4000
    logits = np.repeat(some_logits(4, scale=1.5)[:1], count, axis=0)
    uniform = (np.arange(count) + 0.5) / count
    found = run(logits, config, uniform)
    frequency = np.bincount(found.tokens, minlength=VOCAB) / count
    np.testing.assert_allclose(frequency, naive(logits[:1], config)[0], atol=2 / count)


def test_top_p_without_top_k_is_cut_at_the_candidates():
    logits = np.linspace(0.1, 0.0, VOCAB, dtype=np.float32)[None]
    uniform = np.array([EDGES[1]], np.float32)
    out = outputs(logits, 1.0, uniform, candidates=2)
    config = SamplerConfig(temperature=1.0, top_p=0.9)
    found = predict(out, 0, 1, config, tempered=True, uniform=uniform)
    assert found.tokens.tolist() == [1]
    assert found.confidence[0] == pytest.approx(0.4977, abs=1e-4)  # of the two that were kept


def test_only_the_rows_asked_for_are_read():
    logits = some_logits(2)
    out = outputs(logits, 0.0, np.zeros(ROWS, np.float32))
    for config in (SamplerConfig(), SamplerConfig(top_k=2)):
        found = predict(out, 0, 2, config, tempered=False, uniform=np.zeros(2, np.float32))
        assert found.tokens.tolist() == plain(logits)[:2].argmax(axis=1).tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e3])
def test_the_extremes_of_temperature_keep_confidence_and_suppression(temperature):
    logits = some_logits(3, scale=8.0)
    config = SamplerConfig(temperature=temperature)
    for uniform in (*EDGES, 0.5):
        found = run(logits, config, np.full(ROWS, uniform))
        assert not np.isin(found.tokens, SUPPRESSED).any()
        expected = naive(logits, config)[np.arange(ROWS), found.tokens]
        np.testing.assert_allclose(found.confidence, expected, rtol=2e-2)
