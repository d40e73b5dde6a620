import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.errors import RequestError
from dlmc_runtime.manifest import Profile
from dlmc_runtime.profiles import ProfileTable


def profile(batch, block, cache, rows):
    return Profile(batch=batch, block=block, cache=cache, rows=rows)


TABLE = ProfileTable(
    [
        profile(4, 8, 64, 8),
        profile(1, 8, 64, 8),
        profile(1, 32, 64, 1),
        profile(1, 8, 256, 8),
        profile(4, 32, 64, 1),
    ]
)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((1, 10, 8, 8), (1, 64)),
        ((1, 64, 8, 8), (1, 64)),
        ((1, 65, 8, 8), (1, 256)),
        ((2, 10, 8, 8), (4, 64)),
        ((9, 10, 8, 8), (4, 64)),  # more than any profile takes: as many as one takes
        ((4, 65, 8, 8), (1, 256)),
    ],
)
def test_room_is_the_smallest_that_holds_all_or_the_widest_there_is(asked, expected):
    assert TABLE.room(*asked) == expected


def test_room_looks_for_a_profile_that_denoises_the_longest_row():
    table = ProfileTable([profile(1, 512, 0, 32), profile(4, 128, 0, 32)])
    assert table.room(4, 0, 100, 32) == (4, 0)
    assert table.room(4, 0, 300, 32) == (1, 0)


def test_no_room_says_what_is_missing():
    with pytest.raises(RequestError, match="need 257 cached positions, the engine holds 256"):
        TABLE.room(1, 257, 8, 8)
    with pytest.raises(RequestError, match="no profile takes 33 positions with 1 head rows"):
        TABLE.room(1, 0, 33, 1)
    with pytest.raises(RequestError, match="no profile takes 16 positions with 16 head rows"):
        TABLE.room(1, 0, 16, 16)


def test_smallest_takes_the_cheapest_that_fits():
    assert TABLE.smallest(1, 64, 5, 1) == profile(1, 8, 64, 8)
    assert TABLE.smallest(1, 64, 9, 1) == profile(1, 32, 64, 1)
    with pytest.raises(RequestError, match="no profile takes 9 positions with 8 head rows"):
        TABLE.smallest(1, 64, 9, 8)


def test_chunk_is_the_largest_block_of_that_cache():
    assert TABLE.chunk(1, 64) == 32
    assert TABLE.chunk(1, 256) == 8


SIZES = st.integers(1, 6)
PROFILES = st.lists(
    st.builds(
        lambda b, t, c, r: profile(b, t, c, min(r, t)), SIZES, SIZES, st.integers(0, 6), SIZES
    ),
    min_size=1,
)


@given(PROFILES, SIZES, st.integers(0, 6), SIZES, SIZES)
def test_whatever_room_promises_exists(profiles, count, cached, block, rows):
    table = ProfileTable(profiles)
    try:
        batch, cache = table.room(count, cached, block, rows)
    except RequestError:
        assert not [
            p for p in profiles if p.cache >= cached and p.block >= block and p.rows >= rows
        ]
        return
    found = table.smallest(batch, cache, block, rows)
    assert found in profiles
    assert (found.batch, found.cache) == (batch, cache)
    assert cache >= cached
    assert found.block >= block
    assert found.rows >= rows
    assert table.chunk(batch, cache) >= block


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((10, 8, 8), (4, 64)),
        ((10, 8, 8, 4), (4, 64)),
        ((10, 8, 8, 3), (1, 64)),
        ((10, 8, 8, 0), (1, 64)),  # there is no narrower one
        ((65, 8, 8), (1, 256)),
    ],
)
def test_a_pool_is_the_widest_batch_over_the_smallest_cache(asked, expected):
    assert TABLE.pool(*asked) == expected


def test_a_pool_is_over_the_smallest_cache_whatever_its_batches():
    table = ProfileTable([profile(1, 8, 256, 8), profile(8, 8, 64, 8)])
    assert table.pool(10, 8, 8) == (8, 64)
    assert table.pool(100, 8, 8) == (1, 256)


def test_what_no_pool_takes_is_refused():
    with pytest.raises(RequestError, match="need 257 cached positions"):
        TABLE.pool(257, 8, 8)
    with pytest.raises(RequestError, match="no profile takes 33 positions"):
        TABLE.pool(0, 33, 1)


def test_a_table_has_what_smallest_finds():
    assert TABLE.has(4, 64, 8, 8)
    assert TABLE.has(4, 64, 32, 1)
    assert not TABLE.has(4, 64, 32, 8)  # neither of the two shapes is large enough in both
    assert not TABLE.has(4, 256, 1, 1)


def test_widths_are_batches_built_in_the_same_shapes():
    shapes = [(8, 8), (32, 1)]
    both = [profile(b, t, 64, r) for b in (1, 2, 4, 8) for t, r in shapes]
    table = ProfileTable([*both, profile(3, 8, 64, 8), profile(6, 8, 256, 8), profile(1, 8, 0, 8)])
    assert table.widths(8, 64) == (1, 2, 4, 8)  # three rows could not be prefilled
    assert table.widths(2, 64) == (1, 2)
    assert table.widths(3, 64) == (3,)
    assert table.widths(6, 256) == (6,)


@given(PROFILES, st.integers(0, 6), SIZES, SIZES, st.none() | SIZES)
def test_whatever_a_pool_promises_exists_at_every_width(profiles, cached, block, rows, most):
    table = ProfileTable(profiles)
    try:
        batch, cache = table.pool(cached, block, rows, most)
    except RequestError:
        with pytest.raises(RequestError):
            table.room(1, cached, block, rows)
        return
    assert cache >= cached
    fitting = [p for p in profiles if p.cache >= cached and p.block >= block and p.rows >= rows]
    assert cache == min(p.cache for p in fitting)
    same = {p.batch for p in fitting if p.cache == cache}
    assert batch == max((b for b in same if most is None or b <= most), default=min(same))
    widths = table.widths(batch, cache)
    assert widths == tuple(sorted(widths))
    assert widths[-1] == batch
    for width in widths:
        assert table.has(width, cache, block, rows)
        assert table.smallest(width, cache, block, rows).batch == width
        assert table.chunk(width, cache) == table.chunk(batch, cache)
