from dataclasses import fields

import pytest

from dlmc_runtime.events import Result
from dlmc_runtime.statistics import Counts, Statistics


def test_nothing_has_happened_at_the_start():
    now = Counts().snapshot(waiting=0, active=0, slots=0, prefix_bytes=0)
    assert now == Statistics()


def test_what_finished_is_added_up():
    counts = Counts()
    for reason, tokens in (("stop", 3), ("length", 5), ("stop", 0)):
        counts.finish(Result("", (7,) * tokens, 10, 6, reason, 1.0, 1.0, cached_tokens=4))
    now = counts.snapshot(waiting=2, active=3, slots=4, prefix_bytes=5)
    assert now.finished == {"stop": 2, "length": 1}
    assert (now.tokens, now.prompt_tokens, now.cached_tokens) == (8, 30, 12)
    assert now.row_forwards == 18
    assert (now.waiting, now.active, now.slots, now.prefix_bytes) == (2, 3, 4, 5)


def test_a_snapshot_is_of_its_moment():
    counts = Counts()
    counts.forwards["denoise"] += 1
    before = counts.snapshot(waiting=0, active=0, slots=0, prefix_bytes=0)
    counts.forwards["denoise"] += 1
    counts.cancelled += 1
    assert before.forwards == {"denoise": 1}
    assert before.cancelled == 0
    with pytest.raises(AttributeError):
        before.cancelled = 1  # type: ignore[misc]  # on purpose


def test_every_count_is_in_the_snapshot():
    counted = {field.name for field in fields(Counts)}
    assert counted < {field.name for field in fields(Statistics)}
