"""Candidates, draws and confidences against a plain float64 computation over the vocabulary."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlmc.denoiser.head import Head
from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.prediction import candidates, predict
from dlmc_runtime.samplers import find
from dlmc_runtime.samplers.base import Sampler
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


class Everything(Sampler):
    """Asks for margins and entropies before temperature, which no sampler of the table does."""

    needs: ClassVar[frozenset[str]] = frozenset({"margin", "entropy"})


class Tempered(Everything):
    tempered: ClassVar[bool] = True


class NucleusFirst(Tempered):
    nucleus_first: ClassVar[bool] = True


KINDS = (Everything, Tempered, NucleusFirst)


def softmax(scaled):
    """Return probabilities [..., V], float64."""
    probability = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return probability / probability.sum(axis=-1, keepdims=True)


def top_k(row, count):
    if count:
        row[np.argsort(-row, kind="stable")[count:]] = -np.inf


def top_p(row, share):
    if share >= 1:
        return
    total, probability = 0.0, softmax(row)
    for token in np.argsort(-row, kind="stable"):
        if total > share:  # the nucleus keeps the token that crosses its share
            row[token] = -np.inf
        total += probability[token]


def naive(logits, config, kind=Tempered):
    """Return the token distribution [R,V] of the row, float64, filters applied."""
    scaled = logits.astype(np.float64) / (config.temperature or 1.0)
    scaled[:, list(SUPPRESSED)] = -np.inf
    for row in scaled:
        if kind.nucleus_first:
            top_p(row, config.top_p)
            top_k(row, config.top_k)
        else:
            top_k(row, config.top_k)
            top_p(row, config.top_p)
    return softmax(scaled)


def plain(logits):
    """Return the unfiltered, untempered distribution [R,V], float64."""
    return naive(logits, SamplerConfig())


def some_logits(seed, scale=3.0):
    return (np.random.default_rng(seed).normal(size=(ROWS, VOCAB)) * scale).astype(np.float32)


def run(logits, config, uniform, kind=Tempered, kept=CANDIDATES):
    uniform = np.asarray(uniform, np.float32)
    out = outputs(logits, config.temperature, uniform, kept)
    return predict(out.row(0, 0, len(logits)), config, kind, uniform)


CONFIGS = st.builds(
    SamplerConfig,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.integers(0, CANDIDATES),
    top_p=st.sampled_from([0.05, 0.4, 0.77, 0.95, 1.0]),
)
UNIFORM = st.sampled_from(EDGES) | st.floats(0, EDGES[1], width=32)


@pytest.mark.parametrize("kind", KINDS)
@given(
    config=CONFIGS,
    seed=st.integers(0, 1000),
    uniform=st.lists(UNIFORM, min_size=ROWS, max_size=ROWS),
)
def test_everything_follows_the_distribution(kind, config, seed, uniform):
    logits = some_logits(seed)
    drawn_from = naive(logits, config, kind)
    found = run(logits, config, uniform, kind)
    assert found.tokens.dtype == np.int64
    own = drawn_from[np.arange(ROWS), found.tokens]
    assert (own > 0).all()
    assert not np.isin(found.tokens, SUPPRESSED).any()
    if config.temperature == 0:
        assert found.tokens.tolist() == drawn_from.argmax(axis=1).tolist()
    untempered = plain(logits)[np.arange(ROWS), found.tokens]
    expected = own if kind.tempered else untempered
    np.testing.assert_allclose(found.confidence, expected, rtol=2e-5, atol=1e-7)
    filtered = bool(config.top_k) or config.top_p < 1
    # Without filters margins and entropies are of the distribution that confidence is taken from.
    seen = drawn_from if kind.tempered or filtered else plain(logits)
    two = -np.sort(-seen, axis=1)[:, :2]
    np.testing.assert_allclose(found.margin, two[:, 0] - two[:, 1], rtol=2e-5, atol=2e-5)
    terms = np.where(seen > 0, seen * np.log(np.where(seen > 0, seen, 1)), 0)
    np.testing.assert_allclose(found.entropy, -terms.sum(axis=1), rtol=2e-5, atol=2e-5)
    assert found.margin.dtype == found.entropy.dtype == np.float64


def test_the_order_of_the_filters_matters():
    logits = np.full((1, VOCAB), -30.0, np.float32)
    logits[0, [0, 1, 2, 4]] = np.log([0.4, 0.3, 0.2, 0.1])
    config = SamplerConfig(temperature=1.0, top_k=3, top_p=0.75)
    # top-k first: 4/9, 3/9 reach 0.75; the nucleus first: 0.4, 0.3 do not, and 0.2 crosses it.
    last = [EDGES[1]]
    by_count = run(logits, config, last, Tempered)
    by_share = run(logits, config, last, NucleusFirst)
    assert (by_count.tokens[0], by_share.tokens[0]) == (1, 2)
    assert by_count.confidence[0] == pytest.approx(3 / 7, abs=1e-5)
    assert by_share.confidence[0] == pytest.approx(2 / 9, abs=1e-5)


def test_what_follows_a_sum_of_exactly_top_p_is_kept():
    said = Outputs(
        top_ids=np.array([[4, 2, 0]]),
        top_logits=np.log(np.array([[0.5, 0.25, 0.25]], np.float32)),
        logsumexp=np.zeros(1, np.float32),
        entropy=np.zeros(1, np.float32),
        tempered_logsumexp=np.zeros(1, np.float32),
        tempered_entropy=np.zeros(1, np.float32),
        sampled_id=np.array([4]),
        sampled_logit=np.log(np.array([0.5], np.float32)),
    )
    half = float(np.exp(said.top_logits[0, 0].astype(np.float64)))  # rounded by the logarithm
    found = predict(said, SamplerConfig(top_p=half), Tempered, np.zeros(1, np.float32))
    assert found.confidence[0] == pytest.approx(2 / 3)
    below = float(np.nextafter(half, 0))
    found = predict(said, SamplerConfig(top_p=below), Tempered, np.zeros(1, np.float32))
    assert found.confidence[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "tempered", "nucleus_first"),
    [
        ("low_confidence", False, False),
        ("random", False, False),
        ("credit", False, False),
        ("klass", False, False),
        ("wino", False, False),
        ("low_confidence_dynamic", True, False),
        ("entropy_bounded", True, False),
        ("cumulative_error", True, False),
        ("autoregressive", True, False),
        ("maskgit_plus", True, True),
        ("entropy", True, True),
        ("origin", True, True),
    ],
)
def test_each_sampler_has_its_references_order(name, tempered, nucleus_first):
    kind = find(name)
    assert (kind.tempered, kind.nucleus_first) == (tempered, nucleus_first)


def test_parts_are_only_there_where_they_are_asked_for():
    logits = some_logits(5)
    for name in ("low_confidence", "topk_margin", "entropy", "klass", "wino", "random"):
        for config in (SamplerConfig(name=name), SamplerConfig(name=name, top_k=3)):
            found, needs = run(logits, config, np.zeros(ROWS), find(name)), find(name).needs
            assert (found.margin is not None) == ("margin" in needs)
            assert (found.entropy is not None) == ("entropy" in needs)
            assert (found.candidates is not None) == ("candidates" in needs)
            assert found.noise is None  # the loop's to add
            assert found.shadow is None


@pytest.mark.parametrize("config", [SamplerConfig(), SamplerConfig(top_k=1)])
def test_a_margin_needs_two_candidates(config):
    with pytest.raises(ValueError, match="two candidates"):
        run(some_logits(6), config, np.zeros(ROWS), kept=1)


def test_candidates_carry_the_whole_distribution():
    logits = some_logits(7)
    out = outputs(logits, 0.7, np.zeros(ROWS, np.float32), candidates=3)
    found = candidates(out.row(0, 0, ROWS))
    assert found.ids.shape == found.logits.shape == (ROWS, 3)
    expected = np.take_along_axis(plain(logits), found.ids, 1)
    np.testing.assert_allclose(np.exp(found.logprobs), expected, rtol=1e-5)


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
    found = predict(out.row(0, 0, 1), config, find("low_confidence_static"), uniform)
    assert found.tokens.tolist() == [1]
    assert found.confidence[0] == pytest.approx(0.4977, abs=1e-4)  # of the two that were kept


def test_only_the_rows_asked_for_are_read():
    logits = some_logits(2)
    said = outputs(logits, 0.0, np.zeros(ROWS, np.float32)).row(0, 1, 3)
    for config in (SamplerConfig(), SamplerConfig(top_k=2)):
        found = predict(said, config, Everything, np.zeros(2, np.float32))
        assert found.tokens.tolist() == plain(logits)[1:3].argmax(axis=1).tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e3])
def test_the_extremes_of_temperature_keep_confidence_and_suppression(temperature):
    logits = some_logits(3, scale=8.0)
    config = SamplerConfig(temperature=temperature)
    for uniform in (*EDGES, 0.5):
        found = run(logits, config, np.full(ROWS, uniform))
        assert not np.isin(found.tokens, SUPPRESSED).any()
        expected = naive(logits, config)[np.arange(ROWS), found.tokens]
        np.testing.assert_allclose(found.confidence, expected, rtol=2e-2)
