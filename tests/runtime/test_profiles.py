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
