import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import masks
from dlmc_runtime.blocks import Blocks


def filled(block, cache, among, visible, hole=(0, 0)):
    mask = np.random.default_rng(0).random((block, cache + block)) < 0.5  # what was there before
    masks.fill(mask, np.array(among, np.bool_), visible, hole)
    return mask.astype(int).tolist()


def own(kind, start, end, length, offset=0):
    return masks.own(kind, np.arange(start, end), Blocks(length, offset, 99)).astype(int).tolist()


def test_everyone_sees_everything_but_padding():
    assert filled(3, 0, np.ones((2, 2)), 0) == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_all_see_what_is_visible_of_the_cache():
    assert filled(2, 3, np.ones((2, 2)), 2) == [[1, 1, 0, 1, 1], [1, 1, 0, 1, 1]]


def test_a_hole_in_the_cache_is_hidden():
    assert filled(2, 5, np.ones((2, 2)), 4, hole=(1, 3)) == [[1, 0, 0, 1, 0, 1, 1]] * 2


def test_blocks_see_themselves_and_those_before():
    assert own("blocks", 2, 6, 2) == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


def test_blocks_may_begin_elsewhere():
    assert own("blocks", 0, 3, 2, offset=1) == [[1, 0, 0], [1, 1, 1], [1, 1, 1]]


def test_causal_and_everyone():
    assert own("causal", 1, 3, 2) == [[1, 0], [1, 1]]
    assert own("everyone", 1, 3, 2) == [[1, 1], [1, 1]]


def test_shadows_see_all_but_their_own_token_and_nobody_sees_them():
    among = masks.add_shadow(np.ones((3, 3), np.bool_), 4, (5, 7)).astype(int).tolist()
    assert among == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 1, 1, 1],
        [1, 1, 0, 1, 1],
    ]


def test_a_window_hides_what_is_far_away():
    mask = np.ones((3, 7), np.bool_)
    masks.narrow(mask, np.array([4, 5, 6]), 2, 2)
    assert mask.astype(int).tolist() == [
        [0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1],  # padding is not touched
    ]


def test_a_ring_holds_the_last_positions():
    assert masks.held(0, 3).tolist() == [-1, -1, -1]
    assert masks.held(2, 3).tolist() == [0, 1, -1]
    assert masks.held(3, 3).tolist() == [0, 1, 2]
    assert masks.held(7, 3).tolist() == [6, 4, 5]
    assert masks.held(5, 0).tolist() == []


@given(filled=st.integers(0, 40), size=st.integers(0, 9))
def test_a_ring_is_what_storing_one_by_one_makes_of_it(filled, size):
    slots = [-1] * size
    for position in range(filled if size else 0):
        slots[position % size] = position
    assert masks.held(filled, size).tolist() == slots


@given(
    filled=st.integers(0, 20),
    count=st.integers(1, 9),
    context=st.integers(1, 9),
    size=st.integers(0, 30),
    padding=st.integers(0, 3),
)
def test_a_trail_is_what_lies_close_behind(filled, count, context, size, padding):
    size = max(size, filled)  # of the whole cache
    block, ring = count + padding, min(size, context)
    mask = np.ones((block, ring + block), np.bool_)
    positions = np.arange(filled, filled + count)
    masks.fill(mask, masks.own("causal", positions, Blocks(1, 0, 99)), filled)
    masks.trail(mask, positions, filled, context)
    slots = {slot: p for slot, p in enumerate(masks.held(filled, ring).tolist()) if p >= 0}
    for query in range(count):
        seen = {slots[slot] for slot in np.flatnonzero(mask[query, :ring]).tolist()}
        seen |= set((np.flatnonzero(mask[query, ring:]) + filled).tolist())
        here = filled + query
        assert seen == set(range(max(here - context, 0), here + 1))
    for query in range(count, block):
        assert np.flatnonzero(mask[query]).tolist() == [ring + query]


def test_what_is_visible_may_be_more_than_a_ring_holds():
    assert filled(2, 3, np.ones((2, 2)), 9) == [[1, 1, 1, 1, 1]] * 2


@given(
    kind=st.sampled_from(["everyone", "blocks", "causal"]),
    block=st.integers(1, 9),
    cache=st.integers(0, 9),
    count=st.integers(0, 9),
    visible=st.integers(0, 9),
    length=st.integers(1, 4),
    offset=st.integers(0, 3),
    hole=st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted).map(tuple),
)
def test_every_entry_follows_the_rule(kind, block, cache, count, visible, length, offset, hole):
    count, visible = min(count, block), min(visible, cache)
    hole = (min(hole[0], cache), min(hole[1], cache))
    among = masks.own(kind, np.arange(visible, visible + count), Blocks(length, offset, 99))
    mask = filled(block, cache, among, visible, hole)
    for query in range(block):
        assert any(mask[query])  # a softmax over nothing is undefined
        for key in range(cache + block):
            if query >= count:
                expected = key == cache + query
            elif key < cache:
                expected = key < visible and not hole[0] <= key < hole[1]
            else:
                expected = key - cache < count and _sees(
                    kind, visible + query, visible + key - cache, length, offset
                )
            assert mask[query][key] == expected


def _sees(kind, query, key, length, offset):
    if kind == "blocks":
        return (query + offset) // length >= (key + offset) // length
    return kind == "everyone" or query >= key


@pytest.mark.parametrize("kind", ["everyone", "blocks", "causal"])
def test_nothing_fed_sees_nothing(kind):
    assert own(kind, 3, 3, 2) == []
