import numpy as np
import pytest

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch, as_many_as_fit
from dlmc_runtime.errors import EngineError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig

SCRIPT = np.arange(60)


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


def widths(*batches):
    return shapes(*((b, t, 48, r) for b in batches for t, r in ((4, 4), (16, 1))))


class Drawn(Batch):
    """A batch that makes rows for itself: ``batch.row(count, slots)``."""

    def row(self, count=4, slots=1, prompt=(7,), **options):
        guidance = 1.5 if slots == 2 else 0.0
        config = SamplerConfig(**{"name": "sequential", "guidance": guidance, **options})
        return Row(Request(tuple(prompt), count, config), self.engine.manifest)


@pytest.fixture
def made(manifest, scripted):
    """Make an empty batch over a scripted engine."""

    def make(size, profiles=None, context=48, **changes):
        facts = manifest(profiles=profiles or widths(1, 2, 4, 5, 8), guided=True, **changes)
        return Drawn(scripted(facts, SCRIPT), size, context)

    return make


def joined(batch, *slots):
    rows = [batch.row(slots=count) for count in slots]
    places = [batch.join(row) for row in rows]
    return rows, places


def test_rows_take_the_first_slots_that_are_free(made):
    batch = made(8)
    rows, places = joined(batch, 1, 2, 1)
    assert places == [0, 1, 3]
    batch.leave(rows[1])
    assert batch.places == [0, 3]
    assert joined(batch, 1, 2)[1] == [1, 4]  # two neighbours are free behind the others only
    assert batch.active == [0, 1, 2, 3]


def test_a_full_batch_has_no_room(made):
    batch = made(4)
    rows, _ = joined(batch, 1, 1, 1, 1)
    assert not batch.has_room(batch.row())
    with pytest.raises(ValueError, match="no room for 1 more in a batch of 4"):
        batch.join(batch.row())
    batch.leave(rows[1])
    assert batch.has_room(batch.row())
    assert not batch.has_room(batch.row(slots=2))
    with pytest.raises(ValueError, match="no room for 2 more in a batch of 4"):
        batch.join(batch.row(slots=2))
    batch.leave(rows[2])
    assert batch.has_room(batch.row(slots=2))


def test_others_move_for_a_pair(made):
    batch = made(5)
    rows, _ = joined(batch, 1, 1, 2, 1)
    mark(batch)
    batch.leave(rows[0], spoiled=True)
    batch.leave(rows[3])
    before = marks(batch)
    pair = batch.row(slots=2)
    assert batch.has_room(pair)
    assert batch.join(pair) == 3
    assert batch.places == [0, 1, 3]
    assert marks(batch)[:2] == before
    assert batch.cache.filled[:3].tolist() == [2, 3, 4]  # nothing of theirs was cleared


def test_the_place_of_a_row_that_has_finished_is_free(made):
    batch = made(2)
    rows, _ = joined(batch, 1, 1)
    rows[0].finished = True
    assert batch.active == [1]
    assert joined(batch, 1)[1] == [0]


def test_rows_without_a_shape_in_common_do_not_meet(manifest, scripted):
    facts = manifest("full", profiles=shapes((2, 16, 0, 4), (2, 12, 0, 8)))
    batch = Batch(scripted(facts, SCRIPT), 2, 0)

    def row(count, block):
        config = SamplerConfig("low_confidence", block_length=block)
        return Row(Request((7,), count, config), facts)

    long, wide = row(14, 4), row(8, 8)
    assert batch.has_room(long)
    assert batch.has_room(wide)
    batch.join(long)
    assert not batch.has_room(wide)
    assert batch.has_room(row(8, 4))
    batch.leave(long)
    batch.join(wide)
    assert not batch.has_room(long)


def mark(batch):
    """Write to every slot of the cache what tells it from the others."""
    for past in batch.cache.past.values():
        for slot in range(batch.size):
            past[slot] = slot + 1
    batch.cache.filled[:] = np.arange(batch.size) + 1


def marks(batch):
    """Return what the slots of each row hold."""
    found = []
    for row, place in zip(batch.rows, batch.places, strict=True):
        held = {
            (float(past[slot].min()), float(past[slot].max()), int(batch.cache.filled[slot]))
            for past in batch.cache.past.values()
            for slot in range(place, place + row.slots)
        }
        found.append(sorted(held))
    return found


def test_rows_move_to_the_front_with_what_their_cache_holds(made):
    batch = made(8)
    rows, _ = joined(batch, 1, 1, 1, 2, 1)
    mark(batch)
    for row in rows[:2]:
        batch.leave(row)
    before = marks(batch)
    assert before == [[(3, 3, 3)], [(4, 4, 4), (5, 5, 5)], [(6, 6, 6)]]
    assert batch.narrow() == 4
    assert batch.places == [2, 0, 3]
    assert marks(batch) == before
    assert batch.narrow() == 4  # and it stays as it is
    batch.leave(rows[3])
    assert batch.narrow() == 2
    assert marks(batch) == [before[0], before[2]]
    batch.leave(rows[4])
    assert batch.narrow() == 1
    assert marks(batch) == before[:1]


def test_rows_close_ranks_where_a_pair_finds_no_neighbouring_slots(made):
    batch = made(8)
    rows, _ = joined(batch, 1, 1, 1, 1, 2)
    mark(batch)
    batch.leave(rows[1], spoiled=True)
    batch.leave(rows[3])
    before = marks(batch)
    assert batch.narrow() == 4  # slots 1 and 3 are free: not side by side
    assert batch.places == [0, 1, 2]
    assert marks(batch) == before


def test_without_narrower_shapes_nobody_moves(made):
    odd = (*widths(8), *shapes((2, 4, 48, 4)))  # a batch of two cannot prefill
    batch = made(8, profiles=odd)
    rows, _ = joined(batch, 1, 1, 1)
    batch.leave(rows[0])
    assert batch.narrow() == 8
    assert batch.places == [1, 2]


def test_forwards_are_as_narrow_as_the_rows_allow(made):
    batch = made(8)
    for count in (1, 2, 2, 5):
        batch.join(batch.row(count=count))
    while batch.active:
        decode.step(batch)
    fed = [profile.batch for profile, _, _ in batch.engine.calls]
    assert fed[0] == 4
    assert fed[-1] == 1
    assert fed == sorted(fed, reverse=True)
    for row in batch.rows:
        assert row.answer() == SCRIPT[1 : 1 + row.request.max_new_tokens].tolist()


def test_rings_move_whole(noise_engine):
    """Rows of layers that keep the last positions move in the middle of their answers."""
    shape = [(b, t, 32, r) for b in (1, 2, 4) for t, r in ((4, 4), (16, 1))]
    engine = noise_engine(shapes(*shape), 4, 5)
    generator = Generator(engine, None)
    prompts = [[1, 2], [3, 4, 5], [6] * 9, [*range(11)]]
    asked = [
        generator.request(
            prompt,
            max_new_tokens=4 + 4 * index,
            sampler=SamplerConfig("renoise", steps=3, entropy_bound=1.0),
            ignore_eos=True,
            seed=index,
        )
        for index, prompt in enumerate(prompts)
    ]
    alone = [generator.run([request])[0].tokens for request in asked]
    batch = Batch(engine, 4, 32)
    rows = [Row(request, engine.manifest) for request in asked]
    moved = 0
    for row in rows:
        batch.join(row)
    while batch.active:
        before = dict(zip(map(id, batch.rows), batch.places, strict=True))
        decode.step(batch)
        after = dict(zip(map(id, batch.rows), batch.places, strict=True))
        moved += before != after
        for row in [row for row in batch.rows if row.finished]:
            batch.leave(row)
    assert moved >= 2
    assert [tuple(row.answer()) for row in rows] == alone


def spoil(batch, *slots):
    for past in batch.cache.past.values():
        past[[*slots]] = np.nan


def test_what_a_row_has_spoiled_is_cleared_before_others_sit_there(made):
    batch = made(4)
    rows, _ = joined(batch, 1, 2)
    spoil(batch, 0, 1, 2)
    batch.leave(rows[1], spoiled=True)
    batch.leave(rows[0])  # it says of itself that it left nothing of the kind
    joined(batch, 1, 1)
    held = [
        [bool(np.isnan(past[slot]).any()) for slot in range(3)]
        for past in batch.cache.past.values()
    ]
    assert held == [[True, False, True]] * len(held)
    assert joined(batch, 1)[1] == [2]
    assert not any(np.isnan(past[2]).any() for past in batch.cache.past.values())


def test_a_row_that_moved_onto_a_spoiled_slot_keeps_its_cache(made):
    batch = made(2)
    rows, _ = joined(batch, 1, 1)
    mark(batch)
    spoil(batch, 0)
    batch.leave(rows[0], spoiled=True)
    assert batch.narrow() == 1
    assert marks(batch) == [[(2, 2, 2)]]
    batch.leave(rows[1])
    batch.join(batch.row())
    assert batch.cache.filled[0] == 2  # nothing needed to be cleared


def test_a_slot_that_cannot_be_cleared_takes_nobody(made, monkeypatch):
    batch = made(1)
    rows, _ = joined(batch, 1)

    def broken(slot):
        raise EngineError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(batch.cache, "clear", broken)
        batch.leave(rows[0], spoiled=True)
        with pytest.raises(EngineError, match="is gone"):
            batch.join(batch.row())
        assert batch.rows == []
    assert joined(batch, 1)[1] == [0]


def test_as_many_go_together_as_there_is_a_shape_for(manifest):
    facts = manifest("full", profiles=shapes((4, 16, 0, 4), (2, 24, 0, 4), (4, 12, 0, 8)))
    table = ProfileTable(facts.profiles)

    def row(count, block=4):
        return Row(Request((7,), count, SamplerConfig("low_confidence", block_length=block)), facts)

    assert as_many_as_fit(table, [row(8)] * 6) == 4
    assert as_many_as_fit(table, [row(8), row(20), row(20)]) == 2
    assert as_many_as_fit(table, [row(14), row(8, 8)]) == 1


def marked(batch):
    """Let every slot hold its own number."""
    for slot in range(batch.size):
        for past in batch.cache.past.values():
            past[slot] = slot
    batch.cache.filled[:] = 8
    for row in batch.rows:
        row.cached = 8


def held(batch):
    past = next(iter(batch.cache.past.values()))
    return [float(past[slot, 0, 0, 0]) for slot in range(batch.size)]


def test_a_row_that_feeds_much_comes_to_the_front_and_takes_its_cache_with_it(made):
    batch = made(4)
    joined(batch, 1, 1, 1, 1)
    marked(batch)
    assert batch.fill([2]) == ([2], 1)
    assert batch.places == [2, 1, 0, 3]
    assert held(batch) == [2, 1, 0, 3]
    assert batch.fill([2]) == ([2], 1)
    assert held(batch) == [2, 1, 0, 3]


def test_rows_come_to_slots_that_nobody_needs_and_find_nothing_spoiled_there(made):
    batch = made(8)
    rows, _ = joined(batch, *[1] * 5)
    marked(batch)
    for past in batch.cache.past.values():
        past[0] = np.nan
    batch.leave(rows[0], spoiled=True)
    assert batch.fill([3]) == ([3], 1)
    assert batch.places == [1, 2, 3, 0]
    assert all(np.isfinite(past[0]).all() for past in batch.cache.past.values())
    assert held(batch)[:4] == [4, 1, 2, 3]


def test_as_many_rows_as_need_half_of_a_width_are_fed_together(made):
    batch = made(8, widths(1, 8))
    joined(batch, *[1] * 8)
    assert batch.fill([2, 5, 7]) == ([2], 1)
    assert batch.fill([1, 2, 5, 7]) == ([1, 2, 5, 7], 8)
    even = made(8)
    joined(even, *[1] * 8)
    assert even.fill([2, 5, 7]) == ([2, 5, 7], 4)
    assert sorted(even.places[index] for index in (2, 5, 7)) < [4]
    assert sorted(even.places) == [*range(8)]


def test_pairs_stay_where_they_are(made):
    batch = made(4)
    joined(batch, 1, 2, 1)
    assert batch.fill([2]) == ([2], 4)
    assert batch.places == [0, 1, 3]


def test_rows_stay_where_they_are_without_memory_to_exchange_them(made, monkeypatch):
    batch = made(4)
    joined(batch, 1, 1, 1, 1)
    marked(batch)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(batch.cache, "save", full)
    assert batch.fill([2]) == ([2], 4)
    assert held(batch) == [0, 1, 2, 3]
    assert batch.places == [0, 1, 2, 3]


def test_a_long_prompt_beside_others_is_fed_alone(made):
    batch = made(4)
    joined(batch, 1, 1, 1)
    decode.step(batch)
    long = batch.row(prompt=[7] * 20)
    batch.join(long)
    decode.step(batch)
    profile, stores, ids = batch.engine.calls[-1]
    assert (profile.batch, profile.block, profile.rows) == (1, 16, 1)
    assert [(store.row, store.count) for store in stores] == [(0, 16)]
    assert ids[0].tolist() == [7] * 16
    while batch.active:
        decode.step(batch)
    for row in batch.rows:
        assert row.answer() == SCRIPT[row.prompt_length :][:4].tolist()
