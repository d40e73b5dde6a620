from dataclasses import replace

import numpy as np
import pytest

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch
from dlmc_runtime.manifest import Profile
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig

MASK = 63
SCRIPT = np.arange(60)
SHAPES = tuple(
    Profile(batch=2, block=t, cache=c, rows=16) for t, c in ((32, 0), (32, 32), (16, 32))
)


@pytest.fixture
def tasks(manifest, scripted):
    """Denoise a request over a scripted engine; return the row and what its forwards were."""

    def run(prompt, count, holes=(), shift=0, sure=None, **options):
        made = manifest("full", profiles=SHAPES, shift=shift)
        # A shifted model says at a position what comes after it.
        script = np.roll(SCRIPT, -1) if shift else SCRIPT
        engine = scripted(made, script, sure)
        config = SamplerConfig(**{"name": "low_confidence", "block_length": 4, **options})
        row = Row(Request(tuple(prompt), count, config, holes=holes), made)
        batch, found = Batch.of(engine, [row]), []
        while batch.active:
            found.append(row.task(99))
            decode.step(batch)
        return row, found

    return run


def spans(found):
    return [(t.kind, t.start, t.end, t.visible, t.hole, t.kept) for t in found]


def test_without_a_cache_everything_is_fed(tasks):
    row, found = tasks(range(3), 8, steps=2)
    assert spans(found) == [("denoise", 0, 11, 0, (0, 0), 0)] * 4
    assert row.answer() == [*range(3, 11)]


def test_prefix_feeds_the_block_and_what_follows(tasks):
    row, found = tasks(range(3), 8, steps=2, cache="prefix")
    assert spans(found) == [
        ("refresh", 0, 11, 0, (0, 0), 3),
        ("denoise", 3, 11, 3, (0, 0), 0),
        ("refresh", 0, 11, 0, (0, 0), 7),
        ("denoise", 7, 11, 7, (0, 0), 0),
    ]
    assert row.answer() == [*range(3, 11)]
    assert row.regime.cache_needed == 11


def test_dual_feeds_the_block_alone(tasks):
    row, found = tasks(range(3), 8, steps=2, cache="dual")
    assert spans(found) == [
        ("refresh", 0, 11, 0, (0, 0), 11),
        ("denoise", 3, 7, 11, (3, 7), 0),
        ("refresh", 0, 11, 0, (0, 0), 11),
        ("denoise", 7, 11, 11, (7, 11), 0),
    ]
    assert row.answer() == [*range(3, 11)]


def test_a_block_that_its_refresh_fills_needs_no_other_forward(tasks):
    _, found = tasks(range(3), 8, steps=1, cache="dual")
    assert [task.kind for task in found] == ["refresh", "refresh"]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_shifted_model_commits_only_the_first_position_at_a_refresh(tasks, cache):
    row, found = tasks(range(3), 8, shift=1, steps=2, cache=cache)
    assert [task.kind for task in found] == ["refresh", "denoise"] * 2
    assert [task.shift for task in found] == [1] * 4
    assert row.answer() == [*range(3, 11)]
    row, found = tasks(range(3), 4, shift=1, threshold=0.1, cache=cache)
    assert len(found) == 2  # although one would do for the threshold


def test_steps_that_commit_nothing_are_left_out(tasks):
    _, found = tasks(range(3), 2, name="entropy", block_length=None, steps=12)
    assert len(found) == 1  # of twelve steps only the last commits any of two positions


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_holes_are_filled_window_by_window(tasks, cache):
    template = [0, 1, MASK, 3, MASK, 5, 6, 7, 8, 9, MASK, MASK, 12]
    holes = ((2, 3), (4, 5), (10, 12))
    row, found = tasks(template, 4, holes=holes, steps=1, cache=cache)
    # Windows of 4 from position 0 on; the one without a hole is not denoised.
    assert [(task.head_start, task.head_end) for task in found] == [(0, 4), (4, 8), (8, 12)]
    assert row.canvas.tolist() == [*range(13)]
    assert row.spans() == [[2], [4], [10, 11]]
    assert row.answer() == [*range(13)]


def test_what_a_template_gives_is_never_changed(tasks):
    row, _ = tasks([50, MASK, MASK, 51], 1, holes=((1, 2),), steps=1)
    assert row.canvas.tolist() == [50, 1, MASK, 51]  # the second mask is text


def test_a_shadow_is_fed_and_read_behind_the_canvas(tasks):
    row, found = tasks(range(3), 8, name="wino")
    assert {(task.start, task.end, task.shadow) for task in found} == {
        (0, 11, (3, 7)),
        (0, 11, (7, 11)),
    }
    assert (row.regime.block_needed, row.regime.head_needed) == (15, 8)
    assert row.answer() == [*range(3, 11)]


def test_a_revising_sampler_is_final_at_the_end_of_a_block(manifest, scripted):
    made = manifest("full", profiles=SHAPES)
    row = Row(Request((1,), 8, SamplerConfig("remdm", steps=2, block_length=4)), made)
    engine = scripted(made, SCRIPT)
    batch = Batch.of(engine, [row])
    known = []
    while batch.active:
        decode.step(batch)
        known.append(row.known)
    assert set(known) == {1, 5, 9}


def test_rows_at_different_lengths_refresh_together_and_alone(manifest, scripted):
    made = manifest("full", profiles=SHAPES)
    config = SamplerConfig(block_length=4, steps=2, cache="dual")
    rows = [Row(Request(tuple(range(n)), 8, config), made) for n in (3, 6)]
    fast = Row(Request((1, 2), 4, replace(config, cache="none")), made)
    engine = scripted(made, SCRIPT)
    batch = Batch.of(engine, rows)
    decode.step(batch)
    assert [row.forwards for row in rows] == [1, 1]
    decode.step(batch)
    profile, stores, _ = engine.calls[-1]
    assert profile.block == 16  # a block each, not the whole canvas
    assert not stores
    mixed = Batch.of(scripted(made, SCRIPT), [rows[0], fast])
    assert {row.task(9).kind for row in mixed.rows} == {"refresh", "denoise"}
    decode.step(mixed)
    assert [row.forwards for row in mixed.rows] == [3, 1]  # what fits in rides along
