"""Committed pieces that later rows begin with; that answers stay the same is in `test_pool`."""

import numpy as np
import pytest

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch
from dlmc_runtime.cache import HostCache
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import LayerCache, Profile
from dlmc_runtime.prefixes import PrefixStore, Trail
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig

CONTEXT = 96
PIECE = 2 * 2 * 2 * 4 * 8 * 4  # bytes: layers, key and value, heads, positions, head size, float32


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


SHAPES = shapes((2, 4, CONTEXT, 4), (2, 16, CONTEXT, 1))


@pytest.fixture
def row(manifest):
    """Make a row: ``row(prompt, count, regime, **sampler)``; its first ``cached`` are stored."""

    def make(prompt, count=4, regime="block", cached=0, **options):
        sampler = SamplerConfig(**{"name": "sequential", **options})
        guided = bool(options.get("guidance"))
        made = Row(Request(tuple(prompt), count, sampler), manifest(regime, guided=guided))
        made.cached = cached
        return made

    return make


@pytest.fixture
def cache(manifest):
    """Make a cache of two rows whose first one holds ``filled`` positions, each told by number."""

    def make(filled=CONTEXT, size=CONTEXT, window=None):
        model = manifest().model
        if window is not None:
            layer = {"key_value_heads": 2, "head_dim": 8}
            layers = (LayerCache(**layer, window=window), LayerCache(**layer))
            model = model.model_copy(update={"layers": layers})
        made = HostCache(model, 2, size)
        wanted = np.arange(filled, dtype=np.float32)[:, None]
        own = [np.broadcast_to(wanted, (2, 2, filled, 8)) for _ in range(4)]
        made.write(0, filled, own)
        return made

    return make


def held(cache, slot=1):
    """Return the positions that a row's layers hold, by layer."""
    return [past[slot, 0, :, 0].tolist() for past in [*cache.past.values()][::2]]


def test_a_row_begins_with_what_another_has_stored(row, cache):
    store, full = PrefixStore(1 << 20), cache()
    store.save(row(range(20), cached=20), full, 0, Trail())
    assert store.nbytes == 5 * PIECE
    other = row([*range(14), 50, 51])
    trail = store.load(other, full, 1)
    assert (other.cached, other.resumed, trail.end) == (12, 12, 12)
    assert full.filled.tolist() == [CONTEXT, 12]
    assert [layer[:13] for layer in held(full)] == [[*range(12), 0]] * 2
    nothing = row([1, *range(20)])
    assert store.load(nothing, full, 1) == Trail()
    assert (nothing.cached, nothing.resumed) == (0, 0)


def test_a_piece_is_used_again_only_behind_the_same_tokens(row, cache):
    store, full = PrefixStore(1 << 20), cache()
    first, second = [1, 2, 3, 4], [5, 6, 7, 8]
    for text in ([*first, 20, 21, 22, 23], [*second, 30, 31, 32, 33]):
        store.save(row(text, cached=8), full, 0, Trail())
    mixed = row([*first, 30, 31, 32, 33, 9])
    store.load(mixed, full, 1)
    assert mixed.cached == 4


def test_the_last_block_of_a_prompt_is_always_computed(row, cache):
    store, full = PrefixStore(1 << 20), cache()
    store.save(row(range(20), cached=20), full, 0, Trail())
    for length, cached in ((3, 0), (4, 0), (5, 0), (8, 4), (9, 4), (12, 8), (20, 16), (24, 20)):
        one = row(range(length))
        store.load(one, full, 1)
        assert one.cached == cached


def test_an_answer_serves_the_next_turn_of_a_conversation(manifest, scripted):
    script = np.arange(60)
    engine = scripted(manifest(profiles=SHAPES), script)
    store, sampler = PrefixStore(1 << 20), SamplerConfig("sequential")
    batch = Batch(engine, 2, CONTEXT)
    first = Row(Request((7,) * 6, 12, sampler), engine.manifest)
    place = batch.join(first)
    trail = store.load(first, batch.cache, place)
    while not first.finished:
        decode.step(batch)
        store.save(first, batch.cache, place, trail)
    batch.leave(first)
    second = Row(Request((*first.canvas[:18].tolist(), 1, 2, 3), 4, sampler), engine.manifest)
    store.load(second, batch.cache, batch.join(second))
    assert first.cached == 16
    assert second.resumed == 16  # ten of them the first one has generated


def test_blocks_that_begin_with_the_answer_are_shared_at_the_same_boundaries_only(manifest, cache):
    attention = {"regime": "block", "block_length": 4, "aligned_to": "answer"}
    facts = manifest(attention=attention)
    store, full = PrefixStore(1 << 20), cache()

    def row(length, cached=0):
        made = Row(Request((*range(length),), 4, SamplerConfig("sequential")), facts)
        made.cached = cached
        return made

    store.save(row(18, cached=18), full, 0, Trail())  # pieces end at 2, 6, 10, 14 and 18
    for length, cached in ((17, 0), (18, 14), (19, 0), (22, 18), (10, 6)):
        one = row(length)
        store.load(one, full, 1)
        assert one.cached == cached


def test_causal_pieces_end_at_the_same_positions_for_everybody(row, cache):
    store, full = PrefixStore(1 << 20), cache()
    store.save(row(range(70), regime="context", cached=70), full, 0, Trail())
    for length, cached in ((32, 0), (33, 32), (64, 32), (65, 64), (80, 64)):
        one = row(range(length), regime="context", name="autoregressive")
        store.load(one, full, 1)
        assert one.cached == cached


@pytest.mark.parametrize(
    ("regime", "options", "limit"),
    [
        ("full", {"name": "low_confidence", "cache": "dual", "block_length": 4}, 1 << 20),
        ("block", {"guidance": 1.5}, 1 << 20),
        ("block", {}, 0),
    ],
)
def test_where_nothing_is_exact_nothing_is_kept(row, cache, regime, options, limit):
    store, full = PrefixStore(limit), cache()
    store.save(row(range(20), regime=regime, cached=20, **options), full, 0, Trail())
    assert store.nbytes == 0
    one = row(range(20), regime=regime, **options)
    assert store.load(one, full, 1) == Trail()
    assert one.cached == 0


def test_a_row_is_saved_as_far_as_it_has_got(row, cache):
    store, full, one, trail = PrefixStore(1 << 20), cache(), row(range(20)), Trail()
    for cached, pieces in ((0, 0), (3, 0), (4, 1), (7, 1), (12, 3)):
        one.cached = cached
        store.save(one, full, 0, trail)
        assert store.nbytes == pieces * PIECE
        assert trail.end == 4 * pieces
        assert len(trail.digests) == pieces


def test_what_is_kept_already_is_not_kept_twice(row, cache):
    store, full = PrefixStore(1 << 20), cache()
    for _ in range(2):
        store.save(row(range(20), cached=20), full, 0, Trail())
        assert store.nbytes == 5 * PIECE


def test_what_was_used_last_stays_within_the_bound(row, cache):
    store, full = PrefixStore(6 * PIECE), cache()
    first, second, third = ([start, *range(11)] for start in (1, 2, 3))

    def save(prompt):
        store.save(row(prompt, cached=12), full, 0, Trail())
        assert store.nbytes <= store.limit

    def found(prompt):
        one = row([*prompt, 9])
        store.load(one, full, 1)
        return one.cached

    save(first)
    save(second)
    assert (found(first), found(second)) == (8, 8)  # the last one is computed in any case
    assert found([*first, 0, 0, 0, 0]) == 12
    save(third)  # takes the place of the second
    assert store.nbytes == 6 * PIECE
    assert found([*first, 0, 0, 0, 0]) == 12
    assert found([*third, 0, 0, 0, 0]) == 12
    assert found(second) == 0


def test_the_end_of_a_text_is_dropped_before_its_beginning(row, cache):
    store, full = PrefixStore(3 * PIECE), cache()
    store.save(row(range(20), cached=20), full, 0, Trail())
    assert store.nbytes == 3 * PIECE
    one = row(range(24))
    store.load(one, full, 1)
    assert one.cached == 12


def test_what_is_larger_than_the_bound_is_not_kept(row, cache):
    store, full = PrefixStore(PIECE - 1), cache()
    store.save(row(range(20), cached=20), full, 0, Trail())
    assert store.nbytes == 0


def test_a_piece_without_its_beginning_is_not_kept(row, cache):
    store, full, trail = PrefixStore(3 * PIECE), cache(), Trail()
    slow = row(range(20), cached=8)
    store.save(slow, full, 0, trail)
    for start in (50, 51):
        store.save(row([start, *range(11)], cached=12), full, 0, Trail())
    slow.cached = 20
    before = store.nbytes
    store.save(slow, full, 0, trail)
    assert (store.nbytes, trail.end) == (before, 20)
    one = row([51, *range(11), 9, 9, 9, 9])
    store.load(one, full, 1)
    assert one.cached == 12


def test_a_device_without_memory_keeps_what_it_has(row, cache, monkeypatch):
    store, full, trail = PrefixStore(1 << 20), cache(), Trail()
    one = row(range(20), cached=8)
    store.save(one, full, 0, trail)

    def full_up(*span):
        raise MemoryError

    one.cached = 16
    with monkeypatch.context() as patch:
        patch.setattr(full, "save", full_up)
        store.save(one, full, 0, trail)
    one.cached = 20
    store.save(one, full, 0, trail)
    assert store.nbytes == 2 * PIECE
    other = row(range(24))
    store.load(other, full, 1)
    assert other.cached == 8


def test_layers_that_keep_the_last_positions_let_a_row_go_on_where_another_stopped(row, cache):
    store, one, trail = PrefixStore(1 << 24), row(range(90), regime="context"), Trail()
    full = cache(filled=0, window=40)

    def grow(to):
        count = to - one.cached
        wanted = np.arange(one.cached, to, dtype=np.float32)[:, None]
        full.write(0, count, [np.broadcast_to(wanted, (2, 2, count, 8))] * 4)
        one.cached = to
        store.save(one, full, 0, trail)

    grow(64)  # the piece that ends at 32 was partly overwritten by then
    other = row(range(90), regime="context")
    store.load(other, full, 1)
    assert other.cached == 64
    ring, whole = held(full)
    assert sorted(ring) == [*range(24, 64)]
    assert [ring[p % 40] for p in range(24, 64)] == [*range(24, 64)]
    assert whole[:64] == [*range(64)]
    short = row(range(50), regime="context")
    store.load(short, full, 1)
    assert short.cached == 0


def test_a_shorter_row_makes_the_beginning_of_a_longer_one_whole(row, cache):
    store = PrefixStore(1 << 24)
    full = cache(filled=64, window=40)
    store.save(row(range(70), regime="context", cached=64), full, 0, Trail())
    before = store.nbytes
    store.save(row(range(40), regime="context", cached=32), cache(filled=32, window=40), 0, Trail())
    assert store.nbytes == before + 32 * 2 * 2 * 8 * 4  # its first layer, key and value
    short = row(range(50), regime="context")
    store.load(short, full, 1)
    assert short.cached == 32
    assert held(full)[0][:32] == [*range(32)]


def test_caches_of_different_sizes_share_what_both_hold(row, cache):
    """A layer that keeps the last positions keeps all of them where the cache is small."""
    store = PrefixStore(1 << 24)
    small, large = cache(filled=40, size=40, window=64), cache(filled=0, window=64)
    store.save(row(range(40), regime="context", cached=40), small, 0, Trail())
    one = row(range(40), regime="context")
    store.load(one, large, 1)
    assert one.cached == 32
    assert [layer[:32] for layer in held(large)] == [[*range(32)]] * 2


def test_tokens_cannot_be_chosen_to_collide(row, cache):
    """Digests have a key of their own in every store."""
    digests = []
    for _ in range(2):
        trail = Trail()
        PrefixStore(1 << 20).save(row(range(8), cached=4), cache(), 0, trail)
        digests += trail.digests
    assert len({*digests}) == 2
    assert {len(digest) for digest in digests} == {32}


def test_results_tell_how_much_of_a_prompt_was_there(torch_engine):
    generator = Generator(torch_engine("block", profiles=SHAPES), None)
    store = PrefixStore(1 << 20)
    batch = Batch(generator.engine, 2, CONTEXT)
    for cached in (0, 36):
        row = Row(generator.request([*range(41)], max_new_tokens=5), generator.manifest)
        place = batch.join(row)
        trail = store.load(row, batch.cache, place)
        assert row.resumed == cached
        while not row.finished:
            decode.step(batch)
            store.save(row, batch.cache, place, trail)
        batch.leave(row)
