import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dlmc.lowering import streamed
from dlmc.lowering.streamed import Streamed, converted, pack, rows
from dlmc_runtime.errors import BundleError, CheckpointError

MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=7),
    elements=st.floats(-6e4, 6e4, width=32),
)


def tensor(values: np.ndarray) -> ir.TensorProtocol:
    return ir.tensor(values, name="w")


def stored(path: Path, values: np.ndarray, offset: int = 8) -> ir.ExternalTensor:
    """Write values behind other bytes and return the reference to them."""
    path.write_bytes(b"x" * offset + values.tobytes())
    return ir.ExternalTensor(
        path.name,
        offset,
        values.nbytes,
        ir.DataType.from_numpy(values.dtype),
        shape=ir.Shape(values.shape),
        name="w",
        base_dir=path.parent,
    )


@given(MATRICES, st.integers(1, 40))
def test_pieces_make_up_the_whole_whatever_their_size(values, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "PIECE", size)
        pieces = list(rows(tensor(values)))
    np.testing.assert_array_equal(np.concatenate(pieces), values)
    row = int(np.prod(values.shape[1:]))
    assert all(piece.size <= max(size, row) for piece in pieces)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_weight_is_read_from_its_file_even_where_that_has_several_names(tmp_path, dtype):
    values = np.linspace(-3, 3, 12).astype(dtype).reshape(4, 3)
    reference = stored(tmp_path / "weights.bin", values)
    (tmp_path / "other.bin").hardlink_to(tmp_path / "weights.bin")
    found = np.concatenate(list(rows(reference)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values.astype(np.float32))


def test_a_file_that_ends_too_early_is_refused(tmp_path):
    reference = stored(tmp_path / "weights.bin", np.ones((4, 4), np.float32))
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(BundleError, match="cannot be read"):
        list(rows(reference))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_finite_number_is_refused(odd):
    values = np.ones((3, 2), np.float32)
    values[2, 1] = odd
    with pytest.raises(CheckpointError, match=r"the weight 'w' holds values .* no finite numbers"):
        list(rows(tensor(values)))


@given(MATRICES, st.sampled_from([ir.DataType.FLOAT16, ir.DataType.BFLOAT16]))
def test_conversion_rounds_as_numpy_does(values, dtype):
    low = converted(tensor(values), dtype, "low")
    expected = values.astype(dtype.numpy())
    assert (low.dtype, tuple(low.shape), low.name) == (dtype, values.shape, "low")
    np.testing.assert_array_equal(low.numpy(), expected)
    assert b"".join(low.chunks()) == low.tobytes() == expected.tobytes()


def test_conversion_of_a_scalar_keeps_its_shape():
    low = converted(tensor(np.array(0.5, np.float32)), ir.DataType.FLOAT16, "low")
    assert low.numpy().shape == ()
    assert low.numpy() == 0.5


def test_float16_refuses_what_it_cannot_hold():
    low = converted(tensor(np.array([1.0, -7e4], np.float32)), ir.DataType.FLOAT16, "low")
    with pytest.raises(CheckpointError, match=r"70000, too large for float16: .*bfloat16"):
        list(low.chunks())


@given(hnp.arrays(np.int8, st.integers(1, 40), elements=st.integers(-8, 7)), st.integers(1, 9))
def test_four_bit_values_are_packed_as_onnx_does_across_pieces(values, size):
    pieces = [values[start : start + size] for start in range(0, len(values), size)]
    made = Streamed(
        ir.DataType.INT4, values.shape, lambda: iter(pieces), "q", tensor(np.zeros(1, np.float32))
    )
    whole = ir.Tensor(values.astype(ml_dtypes.int4), dtype=ir.DataType.INT4)
    assert b"".join(made.chunks()) == whole.tobytes()
    assert len(whole.tobytes()) == made.nbytes
    np.testing.assert_array_equal(made.numpy(), whole.numpy())


def test_the_first_of_a_pair_is_in_the_low_half():
    assert pack(np.array([0x1, 0xF, 0xFF, 0x2], np.uint8)).tolist() == [0xF1, 0x2F]


def test_memory_does_not_grow_with_the_weight(tmp_path, monkeypatch):
    monkeypatch.setattr(streamed, "PIECE", 1 << 14)
    peaks = []
    for count in (256, 4096):
        values = np.ones((count, 256), np.float32)
        low = converted(stored(tmp_path / f"{count}", values), ir.DataType.BFLOAT16, "low")
        tracemalloc.start()
        assert sum(map(len, low.chunks())) == values.nbytes // 2
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 16 * streamed.PIECE
