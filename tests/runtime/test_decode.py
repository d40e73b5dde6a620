from dataclasses import replace

import numpy as np
import pytest

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch, room
from dlmc_runtime.errors import EngineError, RequestError
from dlmc_runtime.manifest import Profile
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig

MASK = 63
SCRIPT = np.arange(60)


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


@pytest.fixture
def batch(manifest, scripted):
    """Make a batch of rows (prompt, max_new_tokens, sampler parameters) over a scripted engine."""

    def make(*rows, regime="block", profiles=None, sure=None, uniforms=None):
        made = manifest(regime, profiles=profiles)
        engine = scripted(made, SCRIPT, sure)
        name = "low_confidence" if regime == "full" else "sequential"
        return Batch.of(
            engine,
            [
                Row(
                    Request(tuple(prompt), count, SamplerConfig(**{"name": name, **sampler})),
                    made,
                    uniforms,
                )
                for prompt, count, sampler in rows
            ],
        )

    return make


def finish(batch):
    events = []
    while batch.active:
        events += decode.step(batch)
    return events


def test_rows_that_must_prefill_go_first_and_alone(batch):
    two = batch(([7] * 9, 3, {}), ([8], 3, {"steps": 1}))
    assert decode.step(two) == []
    profile, stores, ids = two.engine.calls[-1]
    assert (profile.block, profile.rows) == (16, 1)
    assert [(store.row, store.count) for store in stores] == [(0, 8)]
    assert ids[0, :8].tolist() == [7] * 8
    assert [row.forwards for row in two.rows] == [1, 0]
    assert [event.row for event in decode.step(two)] == [0, 1]
    assert two.engine.calls[-1][0].block == 4
    assert two.active == [0]  # the second row was done in one step


def test_rows_that_read_more_do_not_ride_with_those_that_prefill(batch):
    three = batch(([7] * 9, 3, {}), ([6] * 9, 3, {}), ([8], 3, {}))
    assert decode.step(three) == []
    profile, _, _ = three.engine.calls[-1]
    assert (profile.batch, profile.block, profile.rows) == (4, 16, 1)  # as wide as all of them
    assert [row.forwards for row in three.rows] == [1, 1, 0]


def test_denoising_and_committing_rows_share_a_forward(batch):
    two = batch(([7], 7, {"steps": 1}), ([8], 7, {}))
    decode.step(two)
    assert [row.task(16).kind for row in two.rows] == ["commit", "denoise"]
    assert [event.row for event in decode.step(two)] == [1]
    assert [(s.row, s.count) for s in two.engine.calls[-1][1]] == [(0, 4)]
    assert two.cache.filled.tolist() == [4, 0, 0, 0]


def test_a_batch_reaches_the_script(batch):
    rows = [([7] * count, 9, {"steps": steps}) for count, steps in ((1, 1), (4, 2), (6, 4))]
    three = batch(*rows)
    finish(three)
    for row in three.rows:
        assert row.answer() == SCRIPT[row.prompt_length :][:9].tolist()


def test_the_smallest_profile_is_chosen(batch):
    profiles = shapes((1, 16, 0, 4), (1, 32, 0, 8), (2, 32, 0, 8))
    assert batch(([1], 9, {}), regime="full", profiles=profiles).inputs(profiles[0])
    cases = [(1, 10, {}, 16), (1, 16, {}, 32), (1, 10, {"block_length": 6}, 32)]
    for count, tokens, sampler, block in cases:
        one = batch(([1] * count, tokens, sampler), regime="full", profiles=profiles)
        decode.step(one)
        assert one.engine.calls[-1][0] == Profile(
            batch=1, block=block, cache=0, rows=4 if block == 16 else 8
        )


def test_unused_rows_of_a_profile_are_padding(batch):
    one = batch(([1], 5, {}), profiles=shapes((3, 4, 16, 4)))
    decode.step(one)
    inputs = one.inputs(one.engine.profiles[0])
    for row in (1, 2):
        mask = inputs.attention_mask[row, 0]
        assert mask[:, 16:].tolist() == np.eye(4, dtype=bool).tolist()
        assert not mask[:, :16].any()
        assert inputs.temperature[row] == 0


def test_a_row_that_has_finished_is_padding(batch):
    hot = {"steps": 1, "temperature": 0.5}
    two = batch(([1], 3, hot), ([1], 7, {}), profiles=shapes((2, 4, 16, 4)))
    decode.step(two)
    inputs = two.inputs(two.engine.profiles[0])
    assert inputs.temperature.tolist() == [0.5, 0]
    assert two.active == [1]
    decode.step(two)
    assert inputs.temperature.tolist() == [0, 0]
    mask = inputs.attention_mask[0, 0]
    assert mask[:, 16:].tolist() == np.eye(4, dtype=bool).tolist()
    assert not mask[:, :16].any()


@pytest.mark.parametrize(
    ("regime", "name", "confidence"),
    [("block", "low_confidence_static", 0.25), ("full", "low_confidence", 0.5)],
)
def test_the_sampler_says_whether_confidence_is_tempered(batch, regime, name, confidence):
    hot = {"name": name, "temperature": 0.5}
    one = batch(([1], 3, hot), regime=regime, sure=np.full(60, 0.5))
    (event,) = decode.step(one)
    np.testing.assert_allclose(event.confidence, confidence, rtol=1e-6)


def test_inputs_are_what_the_row_says(batch):
    hot = {"temperature": 0.7, "steps": 4}
    two = batch(([9] * 5, 6, hot), ([3], 3, {"steps": 2}), profiles=shapes((2, 6, 16, 5)))
    decode.step(two)  # prefills the first row
    decode.step(two)
    inputs = two.inputs(two.engine.profiles[0])
    assert inputs.input_ids[0, :4].tolist() == [9, MASK, MASK, MASK]
    assert inputs.position_ids[0].tolist() == [4, 5, 6, 7, 8, 9]
    assert inputs.position_ids[1].tolist() == [0, 1, 2, 3, 4, 5]
    assert inputs.head_rows.tolist() == [[0, 1, 2, 3, 0]] * 2
    np.testing.assert_allclose(inputs.temperature, [0.7, 0.0])
    assert (
        inputs.attention_mask[0, 0, :4].nonzero()[1].reshape(4, -1).tolist()
        == [[0, 1, 2, 3, 16, 17, 18, 19]] * 4
    )
    assert len(set(inputs.uniform[0, :4].tolist())) == 4


def test_a_row_draws_its_own_numbers_whoever_is_beside_it(batch):
    hot = {"temperature": 1.0}

    def drawn(*rows):
        made = batch(*rows, profiles=shapes((3, 4, 16, 4)))
        decode.step(made)
        return made.inputs(made.engine.profiles[0]).uniform[: len(rows)].tolist()

    alone = drawn(([1], 3, hot))
    together = drawn(([2], 3, {}), ([1], 3, hot), ([1], 3, hot))
    assert together[1:] == alone * 2  # and the same seed gives the same numbers
    assert together[0] == [0.0] * 4


def test_the_random_sampler_draws_one_number_a_position(batch):
    class Rising:
        def random(self, size):
            return np.arange(size) / size

    row = ([1], 4, {"name": "random", "block_length": 4, "steps": 4})
    one = batch(row, regime="full", uniforms=Rising())
    event = decode.step(one)[0]
    assert event.masked.tolist() == [True, True, True, False]


def test_an_event_is_a_picture_of_the_generated_part(batch):
    one = batch(([1] * 6, 5, {}), sure=np.full(60, 0.25))
    decode.step(one)
    (event,) = decode.step(one)
    assert (event.row, event.forward, event.start, event.end) == (0, 2, -2, 2)
    assert event.canvas.tolist() == [SCRIPT[6], *[MASK] * 5]
    assert event.masked.tolist() == [False, *[True] * 5]
    np.testing.assert_allclose(event.confidence, 0.25, rtol=1e-6)
    before = event.canvas.tolist()
    decode.step(one)
    assert event.canvas.tolist() == before  # a picture, not a window


def test_rows_that_fit_no_profile_are_refused_before_the_first_forward(batch):
    with pytest.raises(RequestError, match="need 52 cached positions, the engine holds 48"):
        batch(([1] * 50, 4, {}))
    with pytest.raises(RequestError, match="takes 41 positions"):
        batch(([1] * 40, 1, {}), regime="full")
    with pytest.raises(RequestError, match="20 head rows"):
        batch(([1], 30, {"block_length": 20}), regime="full")
    with pytest.raises(ValueError, match="5 rows in a batch of 4"):
        batch(*[([1], 1, {})] * 5)


def test_room_says_how_many_rows_go_together(manifest):
    def row(prompt, count):
        return Row(Request((1,) * prompt, count, SamplerConfig(name="sequential")), manifest())

    table = ProfileTable(shapes((1, 4, 32, 4), (4, 4, 8, 4)))
    assert room(table, [row(1, 4)] * 3) == (4, 8)
    assert room(table, [row(1, 4), row(9, 4)]) == (1, 32)
    with pytest.raises(RequestError):
        room(table, [row(40, 4)])


def test_an_answer_shorter_than_a_block_needs_few_head_rows(batch):
    one = batch(([1] * 9, 2, {"block_length": 8}), regime="full", profiles=shapes((1, 16, 0, 2)))
    finish(one)
    assert one.rows[0].answer() == SCRIPT[9:11].tolist()


def test_a_row_of_nan_is_an_error_that_names_it(batch):
    sure = np.full(60, 0.9)
    sure[4:] = np.nan  # the second block
    one = batch(([1], 6, {"steps": 1}), sure=sure)
    with pytest.raises(EngineError, match="NaN at forward 3 of row 0") as caught:
        finish(one)
    assert "dlmc validate" in caught.value.hint


@pytest.mark.parametrize("error", [MemoryError(), ValueError("Maximum allowed dimension")])
def test_too_large_a_profile_is_one_sentence(batch, monkeypatch, error):
    def fail(*sizes):
        raise error

    one = batch(([1], 4, {}))
    monkeypatch.setattr(type(one.engine), "inputs", fail)
    with pytest.raises(EngineError, match="no memory for the inputs of 1x4 over 48"):
        decode.step(one)
    monkeypatch.setattr(type(one.engine), "cache", fail)
    with pytest.raises(EngineError, match="no memory for the cache of 1 rows of 48 positions"):
        batch(([1], 4, {}))


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("entropy", "entropy"),
        ("entropy_bounded", "entropy"),
        ("topk_margin", "top_logits"),
        ("credit", "top_logits"),
        ("klass", "logsumexp"),
    ],
)
def test_numbers_that_are_none_end_the_row_with_an_error(batch, name, broken):
    one = batch(([1], 6, {"name": name}), regime="full")
    forward = one.engine.forward

    def nan(*arguments):
        said = forward(*arguments)
        ids, logits = (np.repeat(array, 2, axis=2) for array in (said.top_ids, said.top_logits))
        said = replace(said, top_ids=ids, top_logits=logits)
        return replace(said, **{broken: np.full_like(getattr(said, broken), np.nan)})

    one.engine.forward = nan
    with pytest.raises(EngineError, match="answered NaN"):
        finish(one)
