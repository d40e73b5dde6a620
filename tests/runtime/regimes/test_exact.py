import numpy as np
import pytest

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch
from dlmc_runtime.manifest import Profile
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig

SCRIPT = np.arange(60)
SHAPES = tuple(Profile(batch=1, block=t, cache=48, rows=r) for t, r in ((4, 4), (16, 1)))


@pytest.fixture
def tasks(manifest, scripted):
    """Denoise a request over a scripted engine; return the row and what its forwards were."""

    def run(prompt, count, regime="block", shift=0, keep_cache=False, attention=None, **options):
        attention = {"regime": regime, "block_length": 4, **(attention or {})}
        made = manifest(regime, profiles=SHAPES, shift=shift, attention=attention)
        tells = shift or attention.get("seeded")
        engine = scripted(made, np.roll(SCRIPT, -1) if shift else SCRIPT)
        if tells and not shift:  # only the causal pass is shifted
            engine = Causal(engine)
        config = SamplerConfig(**{"name": "low_confidence", "steps": 1, **options})
        row = Row(Request(tuple(prompt), count, config, keep_cache=keep_cache), made)
        batch, found = Batch.of(engine, [row]), []
        while batch.active:
            found.append(row.task(99))
            decode.step(batch)
        return row, found

    return run


class Causal:
    """Lets forwards that store predict the next position, as a model with a causal pass does."""

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        if stores:
            inputs.position_ids += 1
        answer = self.engine.forward(inputs, cache, stores)
        if stores:
            inputs.position_ids -= 1
        return answer


def spans(found):
    return [(t.kind, t.start, t.end, t.kept) for t in found]


def test_blocks_of_a_sequence_are_denoised_whole(tasks):
    row, found = tasks(range(6), 4)
    assert spans(found) == [
        ("prefill", 0, 4, 4),
        ("denoise", 4, 8, 0),
        ("commit", 4, 8, 4),
        ("denoise", 8, 12, 0),
    ]
    assert row.answer() == [6, 7, 8, 9]


def test_the_last_block_may_be_cut(tasks):
    _, found = tasks(range(6), 4, attention={"last_block": "cut"})
    assert spans(found)[-1] == ("denoise", 8, 10, 0)


def test_blocks_of_an_answer_begin_with_it(tasks):
    attention = {"aligned_to": "answer", "last_block": "cut"}
    row, found = tasks(range(6), 6, attention=attention)
    assert spans(found) == [
        ("prefill", 0, 6, 6),
        ("denoise", 6, 10, 0),
        ("commit", 6, 10, 4),
        ("denoise", 10, 12, 0),
    ]
    assert row.answer() == [*range(6, 12)]


def test_context_stores_causally(tasks):
    _, found = tasks(range(6), 6, "context")
    assert {task.kind: task.own for task in found} == {
        "prefill": "causal",
        "denoise": "everyone",
        "commit": "causal",
    }


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
def test_a_seed_is_the_first_token_of_the_next_block(tasks, count):
    attention = {"aligned_to": "answer", "last_block": "cut", "seeded": True}
    row, found = tasks(range(5), count, "context", attention=attention)
    assert row.answer() == [*range(5, 5 + count)]
    assert found[0].kind == "prefill"
    if count == 1:
        assert len(found) == 1  # the prompt's last logits were enough
    if count == 5:
        assert [task.kind for task in found] == ["prefill", "denoise", "commit"]


def test_a_prompt_inside_a_block_needs_no_seed(tasks):
    row, found = tasks(range(6), 6, shift=1, attention={"seeded": True})
    assert row.answer() == [*range(6, 12)]
    assert spans(found) == [
        ("prefill", 0, 4, 4),
        ("denoise", 4, 8, 0),
        ("commit", 4, 8, 4),
        ("denoise", 8, 12, 0),
    ]


def test_an_edge_competes_with_its_block(tasks):
    attention = {"aligned_to": "answer", "last_block": "cut"}
    row, found = tasks(range(5), 8, shift=1, attention=attention, steps=4)
    assert row.answer() == [*range(5, 13)]
    assert [task.kind for task in found].count("denoise") == 8  # nothing was planted


def test_sub_blocks_are_filled_one_after_the_other(tasks):
    row, found = tasks(range(4), 8, sub_block_length=2)
    denoised = [t for t in found if t.kind == "denoise"]
    assert [(t.start, t.end, t.head_start, t.head_end) for t in denoised] == [
        (4, 8, 4, 6),
        (4, 8, 6, 8),
        (8, 12, 8, 10),
        (8, 12, 10, 12),
    ]
    assert row.answer() == [*range(4, 12)]


def test_the_sub_block_cache_feeds_a_sub_block_whose_first_token_is_known(tasks):
    options = {"sub_block_length": 2, "cache": "dual", "steps": 2}
    row, found = tasks(range(5), 3, shift=1, attention={"seeded": True}, **options)
    # The first sub-block begins with the prompt's last token: its second step feeds it alone.
    assert [(t.kind, t.start, t.end, t.visible, t.hole, t.kept) for t in found][1:] == [
        ("denoise", 4, 8, 4, (0, 0), 4),
        ("denoise", 4, 8, 4, (0, 0), 4),
        ("denoise", 6, 8, 8, (6, 8), 0),
    ]
    assert row.answer() == [5, 6, 7]


def test_keep_cache_commits_the_last_block(tasks):
    _, found = tasks(range(6), 4, keep_cache=True)
    assert spans(found)[-1] == ("commit", 8, 12, 4)


EDITING = {"name": "token_editing", "steps": None}


def test_a_forward_that_saw_the_final_tokens_stores_them(tasks):
    row, found = tasks(range(6), 8, **EDITING, threshold=0.5)
    assert spans(found) == [
        ("prefill", 0, 4, 4),
        ("denoise", 4, 8, 0),
        ("denoise", 4, 8, 4),  # no mask, and nothing to replace
        ("denoise", 8, 12, 0),
        ("denoise", 8, 12, 4),
        ("denoise", 12, 16, 0),
        ("denoise", 12, 16, 0),  # nobody reads the last block's keys
    ]
    assert row.answer() == [*range(6, 14)]
    assert row.cached == 12


def test_a_block_that_is_changed_last_is_stored_by_one_more_forward(tasks):
    row, found = tasks(range(6), 6, **EDITING, threshold=0.5, max_post_steps=0)
    assert spans(found)[1:4] == [
        ("denoise", 4, 8, 0),
        ("commit", 4, 8, 4),
        ("denoise", 8, 12, 0),
    ]
    assert row.answer() == [*range(6, 12)]


def test_keep_cache_needs_no_commit_either(tasks):
    row, found = tasks(range(6), 4, keep_cache=True, **EDITING, threshold=0.5)
    assert spans(found)[-1] == ("denoise", 8, 12, 4)
    assert (row.finished, row.cached) == (True, 12)


@pytest.mark.parametrize("kind", ["context", "seeded", "edge"])
def test_a_store_that_says_more_is_a_forward_of_its_own(tasks, kind):
    attention = {"aligned_to": "answer", "last_block": "cut"}
    if kind == "context":
        _, found = tasks(range(5), 8, "context", attention=attention, **EDITING, threshold=0.5)
    else:
        attention |= {"seeded": kind == "seeded"}
        _, found = tasks(range(5), 8, shift=1, attention=attention, **EDITING, threshold=0.5)
    kinds = [task.kind for task in found]
    assert kinds.count("commit") == 1
    assert not any(task.kept for task in found if task.kind == "denoise")
