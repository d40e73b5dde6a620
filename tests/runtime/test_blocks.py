import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.blocks import Blocks
from dlmc_runtime.manifest import Attention


def of(prompt, answer, length=4, **attention):
    attention = {"regime": "block", "block_length": 4, **attention}
    return Blocks.of(Attention(**attention), length, prompt, prompt + answer)


def spans(blocks):
    """Return all blocks from the first position on."""
    found, position = [], 0
    while position < blocks.end:
        found.append((blocks.start_of(position), blocks.end_of(position)))
        position = found[-1][1]
    return found


def test_blocks_of_a_sequence_begin_with_it():
    assert spans(of(5, 4)) == [(0, 4), (4, 8), (8, 12)]  # the last one is denoised whole


def test_the_last_block_may_be_cut():
    assert spans(of(5, 4, last_block="cut")) == [(0, 4), (4, 8), (8, 9)]


def test_blocks_of_an_answer_begin_with_it():
    assert spans(of(5, 6, aligned_to="answer")) == [(0, 1), (1, 5), (5, 9), (9, 13)]
    assert spans(of(5, 6, aligned_to="answer", last_block="cut")) == [
        (0, 1),
        (1, 5),
        (5, 9),
        (9, 11),
    ]


def test_a_model_that_sees_everything_has_blocks_of_its_answer():
    assert spans(of(5, 6, regime="full")) == [(0, 1), (1, 5), (5, 9), (9, 11)]


def test_a_block_longer_than_the_answer_is_all_of_it():
    blocks = of(5, 6, length=99, regime="full")
    assert (blocks.start_of(5), blocks.end_of(5), blocks.end) == (5, 11, 11)


@given(
    st.integers(0, 30),
    st.integers(1, 30),
    st.integers(1, 9),
    st.sampled_from(["sequence", "answer"]),
    st.sampled_from(["whole", "cut"]),
)
def test_every_position_is_in_one_block(prompt, answer, length, aligned_to, last_block):
    blocks = of(prompt, answer, length, aligned_to=aligned_to, last_block=last_block)
    edges = spans(blocks)
    assert [begin for begin, _ in edges] == [0, *(end for _, end in edges[:-1])]
    assert edges[-1][1] == blocks.end >= prompt + answer
    assert blocks.end < prompt + answer + length
    for begin, end in edges:
        assert 1 <= end - begin <= length
        inside = range(begin, end)
        assert {(blocks.start_of(p), blocks.end_of(p)) for p in inside} == {(begin, end)}
        assert len(set(blocks.index(np.array(inside)).tolist())) == 1
    numbers = blocks.index(np.array([begin for begin, _ in edges]))
    assert (np.diff(numbers) == 1).all()
    if aligned_to == "answer":
        assert prompt == 0 or prompt in [begin for begin, _ in edges]


@pytest.mark.parametrize("regime", ["block", "context"])
def test_alignment_is_the_models(regime):
    assert of(5, 4, regime=regime).offset == 0
    assert of(5, 4, regime=regime, aligned_to="answer").offset == 3
