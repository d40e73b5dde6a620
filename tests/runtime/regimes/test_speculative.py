import numpy as np
import pytest

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch
from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.manifest import Profile
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import StopRule

SHAPES = tuple(Profile(batch=1, block=t, cache=96, rows=r) for t, r in ((16, 16), (32, 1)))
TRUTH = np.arange(200) % 50


class Drafter:
    """Says the truth causally, and in drafts everywhere but at ``wrong`` positions."""

    def __init__(self, engine, wrong):
        self.engine, self.wrong, self.manifest = engine, wrong, engine.manifest
        self.profiles = engine.profiles

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        self.engine.forward(inputs, cache, stores)
        positions = np.take_along_axis(inputs.position_ids, inputs.head_rows, 1)
        ids = TRUTH[positions + 1] if stores else TRUTH[positions]
        if not stores:
            ids = np.where(np.isin(positions, self.wrong), 55, ids)
        zeros = np.zeros(ids.shape, np.float32)
        logits = np.log(np.full(ids.shape, 0.9, np.float32))
        return Outputs(ids[..., None], logits[..., None], zeros, zeros, zeros, zeros, ids, logits)


@pytest.fixture
def tasks(manifest, scripted):
    def run(prompt, count, wrong=(), name="linear_speculation", stop=(), **options):
        attention = {"regime": "context", "block_length": 16, "aligned_to": "answer"}
        attention |= {"last_block": "cut", "seeded": True}
        made = manifest("context", profiles=SHAPES, attention=attention)
        engine = Drafter(scripted(made, TRUTH), wrong)
        rule = StopRule(frozenset(stop))
        row = Row(Request(tuple(prompt), count, SamplerConfig(name, **options), stop=rule), made)
        batch, found = Batch.of(engine, [row]), []
        while batch.active:
            found.append(row.task(99))
            decode.step(batch)
            assert (batch.cache.filled <= row.regime.cache_needed).all()
        return row, [(t.kind, t.start, t.end) for t in found]

    return run


def test_one_token_a_forward(tasks):
    row, found = tasks(range(5), 3, name="autoregressive")
    assert found == [("prefill", 0, 5), ("verify", 5, 6), ("verify", 6, 7)]
    assert row.answer() == [5, 6, 7]


def test_a_right_draft_is_accepted_and_the_next_one_is_longer(tasks):
    row, found = tasks(range(5), 26)
    assert found == [
        ("prefill", 0, 5),
        ("denoise", 5, 13),
        ("verify", 5, 13),
        ("denoise", 13, 29),
        ("verify", 13, 29),
        ("verify", 29, 30),  # one token is left: there is nothing to draft
    ]
    assert row.answer() == [*range(5, 31)]


def test_a_wrong_draft_is_corrected_where_it_goes_wrong(tasks):
    row, found = tasks(range(5), 14, wrong=[8])
    assert found == [
        ("prefill", 0, 5),
        ("denoise", 5, 13),
        ("verify", 5, 13),
        ("denoise", 8, 16),  # 6 and 7 were right, 8 is corrected
        ("verify", 8, 16),
        ("denoise", 16, 18),
        ("verify", 16, 18),
    ]
    assert row.answer() == [*range(5, 19)]


def test_a_draft_shrinks_after_it_has_grown(tasks):
    _, found = tasks(range(5), 40, wrong=[15])
    lengths = [end - start for kind, start, end in found if kind == "verify"]
    assert lengths[:3] == [8, 16, 8]


def test_a_draft_of_which_half_is_right_with_its_correction_shrinks(tasks):
    _, found = tasks(range(5), 60, wrong=[21])  # 7 of 16 right, the eighth corrected
    lengths = [end - start for kind, start, end in found if kind == "verify"]
    assert lengths[:3] == [8, 16, 8]
    _, found = tasks(range(5), 60, wrong=[22])
    lengths = [end - start for kind, start, end in found if kind == "verify"]
    assert lengths[:3] == [8, 16, 16]


def test_nothing_of_a_wrong_draft_is_fed_again(manifest, scripted):
    made = manifest("context", profiles=SHAPES, attention={"regime": "context", "block_length": 8})
    row = Row(Request((1, 2), 20, SamplerConfig("linear_speculation")), made)
    batch = Batch.of(Drafter(scripted(made, TRUTH), [4]), [row])
    fed = []
    while batch.active:
        if row.task(99).kind == "denoise":
            fed.append(row.canvas[row.start + 1 : row.end].tolist())
        decode.step(batch)
    assert len(fed) > 2
    assert {token for ids in fed for token in ids} == {made.tokens.mask}


def test_a_draft_with_a_threshold_takes_several_forwards(tasks):
    _, found = tasks(range(5), 9, threshold=0.95)
    assert [kind for kind, _, _ in found].count("denoise") == 7  # one position each


@pytest.mark.parametrize("wrong", [(), (7,), range(0, 99, 3), range(99)])
def test_the_text_is_that_of_the_causal_pass_whatever_is_drafted(tasks, wrong):
    row, _ = tasks(range(5), 20, wrong=list(wrong))
    assert row.answer() == [*range(5, 25)]


def test_a_stop_id_ends_the_answer(tasks):
    row, found = tasks(range(5), 20, stop=[8])
    assert row.answer()[:4] == [5, 6, 7, 8]
    assert row.ending.tokens == 3
    assert found[-1] == ("verify", 5, 13)


def test_nothing_of_a_draft_is_final_before_it_is_verified(tasks, manifest, scripted):
    made = manifest("context", profiles=SHAPES, attention={"regime": "context", "block_length": 8})
    row = Row(Request((1, 2), 9, SamplerConfig("linear_speculation")), made)
    batch = Batch.of(Drafter(scripted(made, TRUTH), [3]), [row])
    decode.step(batch)
    assert row.answer() == [2]
    decode.step(batch)
    assert row.answer() == [2]
    decode.step(batch)
    assert row.answer() == [2, 3]
