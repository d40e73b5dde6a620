import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlmc_runtime.cache import HostCache, narrow, saved_from
from dlmc_runtime.manifest import LayerCache


@pytest.fixture
def model(manifest):
    return manifest().model


def present(model, batch, block):
    shape = (batch, model.num_key_value_heads, block, model.head_dim)
    rng = np.random.default_rng(0)
    return [rng.random(shape).astype(np.float32) for _ in range(2 * model.num_hidden_layers)]


def test_a_cache_has_the_graphs_inputs_in_order(model):
    cache = HostCache(model, 3, 5)
    assert list(cache.past) == [
        "past_key_values.0.key",
        "past_key_values.0.value",
        "past_key_values.1.key",
        "past_key_values.1.value",
    ]
    for past in cache.past.values():
        assert past.shape == (3, model.num_key_value_heads, 5, model.head_dim)
        assert past.dtype == np.float32
    assert cache.filled.tolist() == [0, 0, 0]


def test_writes_append_to_one_row_only(model):
    cache, own = HostCache(model, 2, 5), present(model, 2, 3)
    cache.write(1, 2, own)
    cache.write(1, 3, own)
    assert cache.filled.tolist() == [0, 5]
    for past, new in zip(cache.past.values(), own, strict=True):
        assert not past[0].any()
        np.testing.assert_array_equal(past[1, :, :2], new[1, :, :2])
        np.testing.assert_array_equal(past[1, :, 2:], new[1])


def test_a_write_beyond_the_end_or_of_other_layers_fails(model):
    cache = HostCache(model, 1, 4)
    with pytest.raises(ValueError, match="row 0: 5 positions at 0 do not fit into 4"):
        cache.write(0, 5, present(model, 1, 5))
    with pytest.raises(ValueError, match="shorter"):
        cache.write(0, 1, present(model, 1, 1)[:-1])


def test_a_write_at_a_position_ends_the_row_there(model):
    cache, own = HostCache(model, 2, 6), present(model, 2, 3)
    cache.write(1, 3, own)
    cache.write(1, 3, own)
    cache.write(1, 2, own, at=1)
    assert cache.filled.tolist() == [0, 3]
    for past, new in zip(cache.past.values(), own, strict=True):
        np.testing.assert_array_equal(past[1, :, :1], new[1, :, :1])
        np.testing.assert_array_equal(past[1, :, 1:3], new[1, :, :2])
        assert not past[0].any()
    cache.write(1, 0, own, at=0)
    cache.write(1, 1, own)
    assert cache.filled.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("row", "count", "at"),
    [
        *((0, 1, at) for at in (-1, 4, 5, 1 << 62, -(1 << 62))),
        *((0, count, None) for count in (-1, 4, 1 << 62)),
        *((0, 3, at) for at in (2, 3, 4)),
        *((row, 1, 0) for row in (-1, 2, 1 << 40)),
    ],
)
def test_a_write_outside_of_the_cache_changes_nothing(model, row, count, at):
    cache, own = HostCache(model, 2, 4), present(model, 2, 3)
    cache.write(0, 2, own)
    before = cache.contents()
    with pytest.raises(ValueError, match=r"do not fit into 4|no row|of a block of 3"):
        cache.write(row, count, own, at)
    np.testing.assert_array_equal(cache.filled, before.filled)
    for name, array in before.past.items():
        np.testing.assert_array_equal(cache.past[name], array)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_contents_are_a_copy_that_restores(model, dtype):
    cache, other = HostCache(model, 2, 5, dtype), HostCache(model, 2, 5)
    own = [narrow(array, dtype) for array in present(model, 2, 3)]
    cache.write(1, 2, own)
    contents = cache.contents()
    cache.write(1, 1, own)
    assert contents.filled.tolist() == [0, 2]
    other.restore(contents)
    assert other.filled.tolist() == [0, 2]
    for name, array in other.past.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, contents.past[name])
        assert array is not contents.past[name]
        assert not contents.past[name][1, :, 2:].any()
    assert any(array[1, :, :2].any() for array in other.past.values())


def test_a_cache_takes_arrays_that_are_all_of_it(manifest):
    model = manifest().model
    cache = HostCache(model, 1, 6)
    present = [np.full_like(array, index) for index, array in enumerate(cache.past.values())]
    assert cache.take(present)
    assert [one is two for one, two in zip(cache.past.values(), present, strict=True)] == [True] * 4
    assert cache.filled.tolist() == [6]
    assert [*cache.contents().past] == [*cache.past]


@pytest.mark.parametrize("change", [lambda a: a[:, :, :5], lambda a: a.astype(np.float16)])
def test_a_cache_takes_nothing_that_does_not_fit(manifest, change):
    cache = HostCache(manifest().model, 1, 6)
    before = dict(cache.past)
    assert not cache.take([change(array) for array in cache.past.values()])
    assert all(cache.past[name] is array for name, array in before.items())
    assert cache.filled.tolist() == [0]


def turning(model, window):
    """Return a model whose first layer keeps the last ``window`` positions only."""
    kept = LayerCache(key_value_heads=3, head_dim=5, window=window)
    whole = LayerCache(key_value_heads=model.num_key_value_heads, head_dim=model.head_dim)
    return model.model_copy(update={"layers": (kept, whole)})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it is never changed
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(1, 7), st.integers(0, 12))
def test_layers_may_keep_the_last_positions_only(model, counts, window, spare):
    size, end = sum(counts) + spare, 0
    cache = HostCache(turning(model, window), 2, size)
    shapes = [array.shape for array in cache.past.values()]
    assert shapes[0] == shapes[1] == (2, 3, min(window, size), 5)
    assert shapes[2][2] == size
    for count in counts:
        positions = np.arange(end, end + 6, dtype=np.float32)  # more are fed than are kept
        own = [
            np.broadcast_to(positions[:, None], (2, heads, 6, head_dim))
            for _, heads, _, head_dim in shapes
        ]
        cache.write(1, count, own)
        end += count
    first, *_, last = cache.past.values()
    held = range(max(end - first.shape[2], 0), end)
    assert [first[1, 0, p % first.shape[2], 0] for p in held] == [*held]
    assert last[1, 0, :end, 0].tolist() == [*range(end)]
    assert not first[0].any()


def positions(cache, end, row=0, start=0):
    """Store positions ``start`` to ``end`` of a row, each told by its number."""
    numbers = np.arange(start, end, dtype=np.float32)[:, None]
    batch = len(cache.filled)
    own = [
        np.broadcast_to(numbers, (batch, past.shape[1], end - start, past.shape[3]))
        for past in cache.past.values()
    ]
    cache.write(row, end - start, [narrow(np.array(one), cache.dtype) for one in own], start)


def held(cache, row):
    """Return the positions that the first and the last tensor of a row hold, by slot."""
    tensors = [*cache.contents().past.values()]
    return [tensor[row, 0, :, 0].tolist() for tensor in (tensors[0], tensors[-1])]


def test_a_row_can_be_moved_and_cleared(model):
    cache = HostCache(turning(model, 3), 3, 6)
    positions(cache, 5, row=2)
    positions(cache, 2, row=1)
    cache.move(2, 0)
    assert cache.filled.tolist() == [5, 2, 5]
    assert held(cache, 0) == held(cache, 2) == [[3, 4, 2], [0, 1, 2, 3, 4, 0]]
    for past in cache.past.values():
        past[1] = np.nan
    cache.clear(1)
    assert cache.filled.tolist() == [5, 0, 5]
    assert held(cache, 1) == [[0] * 3, [0] * 6]
    assert held(cache, 0) == [[3, 4, 2], [0, 1, 2, 3, 4, 0]]


def test_the_front_of_a_cache_is_that_cache(model):
    cache = HostCache(model, 3, 4)
    for past, front in zip(cache.past.values(), cache.front(2).values(), strict=True):
        assert front.shape == (2, *past.shape[1:])
        assert np.shares_memory(front, past)
        assert front.flags.c_contiguous  # engines bind to it where it lies
    assert cache.front(3) is cache.past


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_saved_is_loaded_into_another_row(model, dtype):
    cache = HostCache(model, 2, 8, dtype)
    positions(cache, 8)
    pieces = [cache.save(0, 0, 3), cache.save(0, 3, 7)]
    assert [one.whole for one in pieces] == [True, True]
    assert [(one.start, one.end) for one in pieces] == [(0, 3), (3, 7)]
    one_position = sum(past[0, :, 0].nbytes for past in cache.past.values())
    assert [one.nbytes for one in pieces] == [3 * one_position, 4 * one_position]
    for past in cache.past.values():
        past[0] = 0  # a copy does not change with what it was made of
    other = HostCache(model, 2, 10, dtype)
    other.load(1, pieces)
    assert other.filled.tolist() == [0, 7]
    assert held(other, 1)[0] == [*range(7), 0, 0, 0]
    assert held(other, 0)[0] == [0] * 10


class Foreign:
    """What a cache of another kind has saved."""

    start, end, nbytes, whole = 0, 4, 16, True


def test_what_another_kind_of_cache_has_saved_is_refused(model):
    with pytest.raises(ValueError, match="another kind of cache"):
        HostCache(model, 1, 4).load(0, [Foreign()])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it is never changed
@given(st.integers(1, 9), st.integers(2, 24), st.lists(st.integers(1, 6), max_size=4))
def test_a_ring_goes_on_where_it_was_saved(model, window, end, more):
    cache = HostCache(turning(model, window), 2, 48)
    positions(cache, end)
    ring = min(window, 48)
    saved = cache.save(0, 0, end)
    assert saved.whole
    cut = cache.save(0, 0, end - 1)
    assert not cut.whole
    assert len(cut.arrays) == 2  # of the layer that keeps everything
    other = HostCache(turning(model, window), 2, 48)
    other.load(1, [saved])
    start = end
    for count in more:
        positions(cache, start + count, 0, start)
        positions(other, start + count, 1, start)
        start += count
    rings, whole = held(other, 1)
    assert [rings[p % ring] for p in range(max(start - ring, 0), start)] == [
        *range(max(start - ring, 0), start)
    ]
    assert whole[:start] == [*range(start)]
    assert held(cache, 0)[1] == whole


def test_where_a_saved_layer_begins():
    assert saved_from(8, 12, filled=12, size=20, capacity=20) == 8
    assert saved_from(8, 12, filled=16, size=20, capacity=20) == 8
    assert saved_from(8, 12, filled=12, size=20, capacity=6) == 6
    assert saved_from(0, 4, filled=4, size=20, capacity=6) == 0
    assert saved_from(8, 12, filled=13, size=20, capacity=6) is None
