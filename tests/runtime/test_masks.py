import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import masks


def filled(block, cache, regime, kind, start, end, cached, block_length):
    mask = np.random.default_rng(0).random((block, cache + block)) < 0.5  # what was there before
    masks.fill(mask, regime, kind, start, end, cached, block_length)
    return mask.astype(int).tolist()


def test_full_sees_everything_but_padding():
    assert filled(3, 0, "full", "denoise", 0, 2, 0, 2) == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_block_sees_the_cache_and_itself():
    assert filled(2, 3, "block", "denoise", 2, 4, 2, 2) == [[1, 1, 0, 1, 1], [1, 1, 0, 1, 1]]


def test_block_prefill_is_causal_over_blocks():
    assert filled(4, 2, "block", "store", 2, 6, 2, 2) == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1],
    ]


def test_context_stores_causally_and_denoises_both_ways():
    assert filled(2, 1, "context", "store", 1, 3, 1, 2) == [[1, 1, 0], [1, 1, 1]]
    assert filled(2, 1, "context", "denoise", 1, 3, 1, 2) == [[1, 1, 1], [1, 1, 1]]


def test_what_no_family_does_is_not_in_the_table():
    with pytest.raises(KeyError):
        filled(2, 0, "full", "store", 0, 2, 0, 2)


@given(
    case=st.sampled_from(sorted(masks._OWN)),
    block=st.integers(1, 9),
    cache=st.integers(0, 9),
    count=st.integers(0, 9),
    cached=st.integers(0, 9),
    block_length=st.integers(1, 4),
)
def test_every_entry_follows_the_rule(case, block, cache, count, cached, block_length):
    count, cached = min(count, block), min(cached, cache)
    start = cached - cached % block_length
    regime, kind = case
    mask = filled(block, cache, regime, kind, start, start + count, cached, block_length)
    for query in range(block):
        assert any(mask[query])  # a softmax over nothing is undefined
        for key in range(cache + block):
            if query >= count:
                expected = key == cache + query
            elif key < cache:
                expected = key < cached
            else:
                expected = key - cache < count and _sees(
                    regime, kind, start + query, start + key - cache, block_length
                )
            assert mask[query][key] == expected


def _sees(regime, kind, query, key, block_length):
    if regime == "block":
        return query // block_length >= key // block_length
    return kind == "denoise" or query >= key
