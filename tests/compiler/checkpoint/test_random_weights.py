import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc.checkpoint import random_weights as module
from dlmc.checkpoint.random_weights import bfloat16_bits, random_weights
from dlmc.checkpoint.safetensors_writer import TensorPlan

MATRIX = TensorPlan("matrix", "F32", (50, 40))


def drawn(tensor: TensorPlan, seed: int = 0) -> bytes:
    return b"".join(random_weights(seed)(tensor))


@given(st.floats(-(2.0**127), 2.0**127, width=32))
def test_bfloat16_is_as_near_as_it_gets(value: float):
    exact = np.array([value], np.float32)
    rounded = (bfloat16_bits(exact).astype(np.uint32) << 16).view(np.float32)
    step = max(abs(value) * 2.0**-7, 2.0**-133)
    assert abs(float(rounded[0]) - float(exact[0])) <= step / 2


def test_bfloat16_ties_go_to_even():
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    rounded = (bfloat16_bits(ties).astype(np.uint32) << 16).view(np.float32)
    assert rounded.tolist() == [1.0, 1 + 2**-6]


def test_matrices_are_normal_and_vectors_ones():
    values = np.frombuffer(drawn(MATRIX), np.float32)
    assert values.shape == (2000,)
    assert 0.018 < values.std() < 0.022
    ones = np.frombuffer(drawn(TensorPlan("norm", "F16", (7,))), np.float16)
    assert ones.tolist() == [1.0] * 7


@pytest.mark.parametrize(("dtype", "size"), [("F32", 4), ("F16", 2), ("BF16", 2)])
def test_sizes(dtype: str, size: int):
    assert len(drawn(TensorPlan("matrix", dtype, (3, 5)))) == 15 * size


def test_seed_and_name_decide():
    assert drawn(MATRIX) == drawn(MATRIX)
    assert drawn(MATRIX) != drawn(MATRIX, seed=1)
    assert drawn(MATRIX) != drawn(TensorPlan("other", "F32", (50, 40)))


def test_large_tensors_come_in_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_PIECE", 600)
    assert [len(piece) for piece in random_weights(0)(MATRIX)] == [2400, 2400, 2400, 800]
