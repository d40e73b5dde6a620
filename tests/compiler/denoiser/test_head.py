import itertools
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlmc.denoiser.config import DenoiserConfig
from dlmc.denoiser.head import DenoiserWithHead, Head, HeadOutputs, draw

BELOW_ONE = float(np.nextafter(np.float32(1), np.float32(0)))
UNIFORMS = st.floats(0, BELOW_ONE, width=32)


def reduce(head: Head, logits, temperature, uniform) -> HeadOutputs:
    """Run the head over one batch row: logits [R,V], one temperature, uniform [R]."""
    outputs = head(
        torch.tensor(logits, dtype=torch.float32)[None],
        torch.tensor([temperature], dtype=torch.float32),
        torch.tensor(uniform, dtype=torch.float32)[None],
    )
    row = {name: one[0] for name, one in outputs._asdict().items() if one is not None}
    return HeadOutputs(**row)


def logsumexp(values):
    best = values.max(-1, keepdims=True)
    return (best + np.log(np.exp(values - best).sum(-1, keepdims=True)))[..., 0]


@st.composite
def rows(draw_from):
    """Logits [R,V] of any sharpness, ids to suppress, a temperature and uniforms [R]."""
    vocab = draw_from(st.integers(3, 700))
    count = draw_from(st.integers(1, 4))
    seed = draw_from(st.integers(0, 2**32 - 1))
    scale = draw_from(st.sampled_from([0.0, 0.1, 1.0, 10.0, 100.0]))
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((count, vocab)) * scale).astype(np.float32)
    suppressed = draw_from(
        st.lists(st.integers(0, vocab - 1), unique=True, min_size=1, max_size=vocab - 2)
    )
    temperature = draw_from(st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.7]))
    uniform = draw_from(st.lists(UNIFORMS, min_size=count, max_size=count))
    return logits, suppressed, temperature, uniform


@given(rows())
def test_agrees_with_float64(case):
    logits, suppressed, temperature, uniform = case
    vocab = logits.shape[-1]
    head = Head(vocab, min(2, vocab - len(suppressed)), suppressed)
    found = reduce(head, logits, temperature, uniform)
    allowed = np.setdiff1d(np.arange(vocab), suppressed)
    exact = logits[:, allowed].astype(np.float64)
    log_p = exact - logsumexp(exact)[:, None]
    tempered = exact / (temperature or 1.0)
    assert_close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-4)
    assert_close(found.logsumexp, logsumexp(exact))
    assert_close(found.entropy, -(np.exp(log_p) * log_p).sum(-1))
    assert_close(found.tempered_logsumexp, logsumexp(tempered))
    log_p = tempered - logsumexp(tempered)[:, None]
    assert_close(found.tempered_entropy, -(np.exp(log_p) * log_p).sum(-1))
    assert (found.entropy >= 0).all()
    assert (found.tempered_entropy >= 0).all()
    best = -np.sort(-exact, axis=-1)[:, : head.candidates]
    np.testing.assert_array_equal(found.top_logits, best.astype(np.float32))
    np.testing.assert_array_equal(
        np.take_along_axis(logits, found.top_ids.numpy(), -1), found.top_logits
    )
    taken = found.sampled_id.numpy()
    np.testing.assert_array_equal(logits[range(len(taken)), taken], found.sampled_logit)


@given(rows())
def test_draws_by_inverting_the_cumulative_distribution(case):
    logits, suppressed, temperature, uniform = case
    vocab = logits.shape[-1]
    found = reduce(Head(vocab, 1, suppressed), logits, temperature, uniform)
    sampled = found.sampled_id.numpy()
    if temperature == 0:
        np.testing.assert_array_equal(sampled, found.top_ids[:, 0])
        return
    exact = logits.astype(np.float64) / temperature
    exact[:, suppressed] = -np.inf
    p = np.exp(exact - logsumexp(exact)[:, None])
    above = p.cumsum(-1)[range(len(sampled)), sampled]
    below = above - p[range(len(sampled)), sampled]
    assert (p[range(len(sampled)), sampled] > 0).all()
    assert (below - 1e-5 <= uniform).all()
    assert (uniform <= above + 1e-5).all()


@pytest.mark.parametrize("uniform", [0.0, 1e-38, 0.5, BELOW_ONE, 1.0])
@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 126_464])
def test_never_draws_what_has_no_weight(vocab, uniform):
    rng = np.random.default_rng(vocab)
    for only in {0, vocab // 2, vocab - 1}:
        weights = torch.zeros(vocab)
        weights[only] = float(rng.random()) + 1e-6
        assert int(draw(weights, torch.tensor(uniform))) == only


@pytest.mark.parametrize("uniform", [0.0, 0.3, BELOW_ONE])
def test_never_draws_suppressed_ids_at_the_edges(uniform):
    suppressed = [0, 1, 510, 511]
    found = reduce(Head(512, 4, suppressed), np.zeros((1, 512)), 1.0, [uniform])
    assert found.sampled_id.item() not in suppressed
    expected = {0.0: 2, BELOW_ONE: 509}.get(uniform, found.sampled_id.item())
    assert found.sampled_id.item() == expected


def test_draws_every_id_as_often_as_it_should():
    rng = np.random.default_rng(7)
    weights = rng.random(1000, dtype=np.float32) * (rng.random(1000) < 0.5)
    uniform = torch.linspace(0, BELOW_ONE, 200_000)
    drawn = draw(torch.tensor(weights).expand(len(uniform), -1), uniform)
    frequency = np.bincount(drawn, minlength=1000) / len(uniform)
    np.testing.assert_allclose(frequency, weights / weights.sum(), atol=2e-5)
    assert (np.diff(drawn) >= 0).all()


def test_a_large_vocabulary_keeps_its_tail():
    vocab = 151_936
    uniform = torch.tensor([0.0, 0.25, 0.5, 0.75, BELOW_ONE])
    drawn = draw(torch.ones(len(uniform), vocab), uniform)
    np.testing.assert_allclose(drawn, uniform * vocab, atol=1)
    assert drawn[-1] == vocab - 1


def test_temperature_zero_ignores_uniform():
    logits = np.random.default_rng(0).standard_normal((64, 300))
    found = reduce(Head(300, 4, [3]), logits, 0.0, np.linspace(0, BELOW_ONE, 64))
    np.testing.assert_array_equal(found.sampled_id, found.top_ids[:, 0])
    np.testing.assert_array_equal(found.tempered_logsumexp, found.logsumexp)
    np.testing.assert_array_equal(found.tempered_entropy, found.entropy)


@pytest.mark.parametrize("temperature", [1e-38, 1e-30, 1e-9, 1e-3])
def test_a_tiny_temperature_leaves_no_entropy(temperature):
    logits = np.random.default_rng(0).standard_normal((64, 300)) * 100
    found = reduce(Head(300, 4, [3]), logits, temperature, np.linspace(0, BELOW_ONE, 64))
    np.testing.assert_allclose(found.tempered_entropy, 0, atol=1e-6)
    np.testing.assert_array_equal(found.sampled_id, found.top_ids[:, 0])
    equal = reduce(Head(300, 4, [3]), np.zeros((1, 300)), temperature, [0.5])
    assert equal.tempered_entropy.item() == pytest.approx(np.log(299), abs=1e-5)


def test_entropy_rises_with_temperature():
    logits = np.random.default_rng(0).standard_normal((8, 300)) * 5
    found = [reduce(Head(300, 4, [3]), logits, t, [0.5] * 8) for t in (0.3, 0.8, 2.0, 1e3)]
    for one, other in itertools.pairwise(found):
        assert (one.tempered_entropy < other.tempered_entropy).all()
    np.testing.assert_allclose(found[-1].tempered_entropy, np.log(299), atol=1e-3)


def guided(head: Head, logits, guidance, partner, temperature=0.0) -> HeadOutputs:
    """Run the head over a batch: logits [B,R,V], guidance [B], partner [B]."""
    batch, rows, _ = logits.shape
    found: HeadOutputs = head(
        torch.tensor(logits),
        torch.full((batch,), temperature),
        torch.full((batch, rows), 0.4),
        torch.tensor(guidance, dtype=torch.float32),
        torch.tensor(partner),
    )
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_guidance_moves_a_row_away_from_its_partner(temperature):
    logits = np.random.default_rng(0).standard_normal((3, 5, 300)).astype(np.float32) * 3
    head = Head(300, 4, [3, 9], "guided")
    found = guided(head, logits, [1.5, 0.3, -0.5], [1, 1, 0], temperature)
    combined = logits.copy()
    combined[0] = logits[1] + np.float32(2.5) * (logits[0] - logits[1])
    combined[2] = logits[0] + np.float32(0.5) * (logits[2] - logits[0])
    uniform, heat = torch.full((3, 5), 0.4), torch.full((3,), temperature)
    wanted = head(torch.tensor(combined), heat, uniform)
    for name, one in found._asdict().items():
        if one is not None:
            torch.testing.assert_close(one, getattr(wanted, name), rtol=1e-5, atol=1e-4)
    assert not np.isin(found.top_ids, [3, 9]).any()


@pytest.mark.parametrize("scale", [0.0, 2.0, -1.0, 1e4, 1e30])
def test_a_row_that_is_its_own_partner_keeps_its_very_numbers(scale):
    logits = np.random.default_rng(0).standard_normal((2, 5, 300)).astype(np.float32) * 3
    head = Head(300, 4, [3], "guided")
    found = guided(head, logits, [scale, scale], [0, 1], 0.7)
    plain = head(torch.tensor(logits), torch.full((2,), 0.7), torch.full((2, 5), 0.4))
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("partner", [[2, 0], [-3, 0]])
def test_a_partner_outside_of_the_batch_is_refused(partner):
    with pytest.raises((IndexError, RuntimeError), match="index"):
        guided(Head(300, 4, [3], "guided"), np.zeros((2, 1, 300), np.float32), [1, 1], partner)


def test_each_row_has_its_own_temperature():
    head = Head(300, 4, [3])
    logits = torch.randn(2, 5, 300, generator=torch.Generator().manual_seed(0))
    uniform = torch.full((2, 5), 0.77)
    both = head(logits, torch.tensor([0.0, 1.3]), uniform)
    for index, temperature in enumerate([0.0, 1.3]):
        alone = reduce(head, logits[index].numpy(), temperature, uniform[index].numpy())
        torch.testing.assert_close(both.sampled_id[index], alone.sampled_id)
        torch.testing.assert_close(both.tempered_logsumexp[index], alone.tempered_logsumexp)
        torch.testing.assert_close(both.tempered_entropy[index], alone.tempered_entropy)


def test_a_certain_prediction_has_no_entropy():
    suppressed = [i for i in range(300) if i != 7]
    found = reduce(Head(300, 1, suppressed), np.zeros((1, 300)), 1.0, [0.5])
    assert found.entropy.item() == 0.0
    assert found.tempered_entropy.item() == 0.0
    assert found.logsumexp.item() == 0.0
    assert found.top_ids.tolist() == [[7]]


def test_equal_logits_have_the_entropy_of_their_number():
    found = reduce(Head(300, 1, [0]), np.full((1, 300), 12.5), 1.0, [0.5])
    assert found.entropy.item() == pytest.approx(np.log(299), abs=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_no_number_does_not_touch_its_neighbour(value, temperature):
    logits = np.random.default_rng(0).standard_normal((2, 300))
    sound = reduce(Head(300, 4, [3]), logits, temperature, [0.3, 0.6])
    logits[0] = value
    broken = reduce(Head(300, 4, [3]), logits, temperature, [0.3, 0.6])
    assert 0 <= broken.sampled_id[0] < 300
    for before, after in zip(sound, broken, strict=True):
        if before is not None and after is not None:
            torch.testing.assert_close(before[1], after[1])


def test_raw_logits_leave_only_where_wanted():
    logits = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    assert reduce(Head(300, 4, [3]), logits, 0.0, [0, 0]).logits is None
    found = reduce(Head(300, 4, [3], "logits"), logits, 0.0, [0, 0])
    np.testing.assert_array_equal(found.logits, logits)


def test_states_its_constants_on_the_meta_device():
    with torch.device("meta"):
        head = Head(10, 2, [9, 4])
    assert head.suppressed.is_meta
    assert head.constants()["suppressed"].nonzero().flatten().tolist() == [4, 9]
    assert "suppressed" not in head.state_dict()


def test_only_the_rows_asked_for_go_through_the_head():
    config = DenoiserConfig(40, 16, 24, 1, 2, 1, 8, 1e-6, 1e4)
    torch.manual_seed(0)
    module = DenoiserWithHead(config, Head(40, 3, [39], "logits"))
    block = torch.arange(6)[None], torch.arange(6)[None], torch.ones(1, 1, 6, 6, dtype=torch.bool)
    past = [(torch.zeros(1, 1, 0, 8), torch.zeros(1, 1, 0, 8))]

    def logits(rows: list[int]) -> torch.Tensor:
        index, uniform = torch.tensor([rows]), torch.zeros(1, len(rows))
        found, _ = module(*block, past, index, torch.zeros(1), uniform)
        assert isinstance(found.logits, torch.Tensor)
        return found.logits[0]

    torch.testing.assert_close(logits([4, 1, 4]), logits(list(range(6)))[[4, 1, 4]])


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("vocab", [1280, 1300])
def test_a_vocabulary_in_parts_gives_what_the_whole_gives(vocab, parts):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, vocab, generator=generator) * 3
    table = torch.randn(vocab, 8, generator=generator)
    rest = torch.tensor([0.0, 0.7]), torch.rand(2, 6, generator=generator)

    def embed(weights: torch.Tensor, part: slice) -> torch.Tensor:
        return weights @ table[part]

    suppressed = [3, vocab - 1]
    whole = Head(vocab, 4, suppressed)(logits, *rest, embed=embed)
    head = Head(vocab, 4, suppressed, parts=parts)
    given = [logits[..., part] for part in head.parts]
    assert len(given) > 1
    found = head(given, *rest, embed=embed)
    for name, one in found._asdict().items():
        if one is not None:
            torch.testing.assert_close(one, getattr(whole, name), rtol=1e-5, atol=1e-5)


def test_expected_embeddings_are_means_at_the_temperature():
    generator = torch.Generator().manual_seed(0)
    logits, table = (torch.randn(*s, generator=generator) for s in ((1, 4, 300), (300, 8)))
    found = Head(300, 4, [])(
        logits,
        torch.tensor([0.7]),
        torch.zeros(1, 4),
        embed=lambda weights, ids: weights @ table[ids],
    )
    wanted = (logits / 0.7).softmax(-1) @ table
    torch.testing.assert_close(found.next_self_conditioning, wanted, rtol=1e-5, atol=1e-5)
