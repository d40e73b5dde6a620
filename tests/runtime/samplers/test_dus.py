import blocks
import numpy as np
import pytest

SAID = {n: blocks.prediction(np.linspace(0.1, 0.9, n)) for n in range(1, 70)}


def rounds(length, **options):
    return blocks.denoise(blocks.build("dus", **options), [1] * length, lambda _: SAID[length])


def levels(length):
    """Return the reference's rounds: the positions at ever smaller strides."""
    stride, found, seen = length // 2, [], set()
    while stride >= 1:
        found.append([i for i in range(0, length, stride) if i not in seen])
        seen.update(found[-1])
        stride //= 2
    return found


def test_by_hand():
    assert rounds(8) == [[0, 4], [2, 6], [1, 3, 5, 7]]
    assert rounds(12) == [[0, 6], [3, 9], [1, 2, 4, 5, 7, 8, 10, 11]]
    assert rounds(1) == [[0]]
    assert rounds(2) == [[0, 1]]


@pytest.mark.parametrize("length", range(2, 70))
def test_the_rounds_are_those_of_the_reference(length):
    found = rounds(length)
    assert found == levels(length)
    assert len(found) == int(np.log2(length))


def test_a_position_that_is_not_sure_waits_for_a_later_round():
    assert rounds(8, threshold=0.5) == [[4], [6], [0, 1, 2, 3, 5, 7]]


def test_a_round_without_masks_is_left_out():
    sampler = blocks.build("dus")
    assert sampler.idle(blocks.state([0, 1, 0, 1, 0, 1, 0, 1], 0))
    found = blocks.denoise(sampler, [0, 1, 0, 1, 0, 1, 0, 1], lambda _: SAID[8])
    assert found == [[1, 3, 5, 7]]


def test_past_the_last_round_everything_is_committed():
    block = blocks.state([0, 1, 1, 0], 40)
    assert blocks.select(blocks.build("dus", threshold=0.99), SAID[4], block) == [1, 2]
