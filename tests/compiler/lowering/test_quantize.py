import tracemalloc

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dlmc.lowering import quantize, streamed
from dlmc.lowering.quantize import Scheme, blobs_of, fitting, integers_of, scales_of
from dlmc_runtime.errors import CheckpointError

TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
WEIGHTS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 70)),
    elements=st.one_of(st.just(0.0), st.floats(-100, 100, width=32), st.floats(-1e-3, 1e-3)),
)
SCHEMES = st.builds(
    Scheme, st.sampled_from([4, 8]), st.sampled_from([0, 16, 32]), st.sampled_from(TYPES)
)


def tensor(values: np.ndarray) -> ir.TensorProtocol:
    return ir.tensor(values.astype(np.float32), name="w")


def decoded(scheme: Scheme, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the integers and scales of rows mean, and the scale of each value."""
    scales = scheme.scales(values).astype(np.float64)[..., None]
    wide = scheme.integers(values) * scales
    count, length = values.shape
    return tuple(
        np.broadcast_to(x, wide.shape).reshape(count, -1)[:, :length] for x in (wide, scales)
    )  # type: ignore[return-value]


@given(WEIGHTS, SCHEMES)
def test_no_value_is_off_by_more_than_half_a_step(values, scheme):
    found, scales = decoded(scheme, values)
    assert (np.abs(found - values) <= scales * (0.5 + 1e-6)).all()


@given(WEIGHTS, SCHEMES)
def test_scales_are_positive_and_finite_and_no_larger_than_needed(values, scheme):
    scales = scheme.scales(values).astype(np.float64)
    assert (scales > 0).all()
    assert np.isfinite(scales).all()
    size = scheme.block or values.shape[1]
    steps = {8: 127, 4: 7.5}[scheme.bits]
    for block in range(scheme.blocks(values.shape[1])):
        peak = np.abs(values[:, block * size : (block + 1) * size]).max(-1)
        least = np.maximum(peak / steps, quantize.smallest(scheme.dtype))
        assert (scales[:, block] <= least * 1.01 + 1e-7).all()


def test_blocks_have_their_own_scale():
    values = np.array([[1.0] * 16 + [100.0] * 16], np.float32)
    scales = Scheme(4, 16, ir.DataType.FLOAT).scales(values)
    np.testing.assert_allclose(scales, [[1 / 7.5, 100 / 7.5]], rtol=1e-6)


def test_zeros_stay_zero_and_their_scale_is_none():
    scheme = Scheme(4, 16, ir.DataType.FLOAT16)
    values = np.zeros((1, 16), np.float32)
    assert not scheme.integers(values).any()
    assert scheme.scales(values)[0, 0] == np.float16(6.104e-05)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_that_blocks_do_not_divide_is_padded_with_zeros(bits):
    values = np.arange(1, 21, dtype=np.float32)[None]
    scheme = Scheme(bits, 16, ir.DataType.FLOAT)
    integers = scheme.integers(values)
    assert integers.shape == (1, 2, 16)
    assert not integers[0, 1, 4:].any()
    assert scales_of(tensor(values), scheme, "s").shape == (1, 2)
    assert integers_of(tensor(values), scheme, "q").numpy().shape == (1, 20)


@pytest.mark.parametrize(
    ("length", "block", "found"),
    [
        (352, 128, (4, 32)),
        (128, 128, (4, 128)),
        (80, 64, (4, 16)),
        (72, 64, (8, 0)),
        (7, 32, (8, 0)),
    ],
)
def test_four_bits_take_the_largest_block_that_divides_a_row_or_give_way(length, block, found):
    scheme = fitting(4, block, tensor(np.ones((2, length))), ir.DataType.FLOAT)
    assert (scheme.bits, scheme.block) == found


def test_eight_bits_share_a_scale_a_row():
    scheme = fitting(8, 32, tensor(np.ones((2, 64))), ir.DataType.FLOAT16)
    assert scheme == Scheme(8, 0, ir.DataType.FLOAT16)
    assert scales_of(tensor(np.ones((2, 64))), scheme, "s").numpy().shape == (2,)


@pytest.mark.parametrize(("block", "error"), [(32, 0.095), (128, 0.111)])
def test_gaussian_weights_lose_what_the_documentation_says(block, error):
    values = np.random.default_rng(0).standard_normal((256, 1024)).astype(np.float32)
    found, _ = decoded(Scheme(4, block, ir.DataType.FLOAT), values)
    assert np.sqrt(((found - values) ** 2).mean()) == pytest.approx(error, abs=0.001)


def test_a_zero_point_would_lose_less():
    values = np.random.default_rng(0).standard_normal((256 * 32, 32))
    low = np.minimum(values.min(-1, keepdims=True), 0)
    scale = (np.maximum(values.max(-1, keepdims=True), 0) - low) / 15
    zero = np.rint(-low / scale)
    found = (np.clip(np.rint(values / scale) + zero, 0, 15) - zero) * scale
    assert np.sqrt(((found - values) ** 2).mean()) == pytest.approx(0.081, abs=0.001)


@given(WEIGHTS, st.integers(1, 200))
def test_a_weight_is_the_same_in_pieces(values, size):
    scheme = Scheme(4, 16, ir.DataType.BFLOAT16)
    count, length = values.shape
    whole = scheme.integers(values).reshape(count, -1)[:, :length]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "PIECE", size)
        found = integers_of(tensor(values), scheme, "q").numpy()
        scales = scales_of(tensor(values), scheme, "s").numpy()
    np.testing.assert_array_equal(found.astype(np.int8), whole)
    np.testing.assert_array_equal(scales, scheme.scales(values))


@given(WEIGHTS, st.sampled_from([4, 8]))
def test_blobs_are_the_integers_shifted_and_packed(values, bits):
    scheme = Scheme(bits, 16, ir.DataType.FLOAT)
    blobs = blobs_of(tensor(values), scheme, "b")
    found = blobs.numpy()
    assert (
        found.shape == tuple(blobs.shape) == (len(values), scheme.blocks(values.shape[1]), 2 * bits)
    )
    if bits == 4:
        found = np.stack((found & 0xF, found >> 4), -1).reshape(*found.shape[:2], 16)
    half = 1 << (bits - 1)
    np.testing.assert_array_equal(found.astype(np.int16) - half, scheme.integers(values))


@pytest.mark.parametrize("make", [integers_of, scales_of, blobs_of])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_refused(make, odd):
    values = np.full((2, 16), odd)
    with pytest.raises(CheckpointError, match="the weight 'w' holds"):
        list(make(tensor(values), Scheme(4, 16, ir.DataType.FLOAT), "q").chunks())


def test_a_scale_that_float16_cannot_hold_is_refused():
    values = np.full((1, 16), 1e6)
    made = scales_of(tensor(values), Scheme(4, 16, ir.DataType.FLOAT16), "s")
    with pytest.raises(CheckpointError, match="too large for float16"):
        list(made.chunks())


def test_memory_does_not_grow_with_the_weight(tmp_path, monkeypatch):
    monkeypatch.setattr(streamed, "PIECE", 1 << 14)
    values = np.ones((4096, 256), np.float32)
    (tmp_path / "w").write_bytes(values.tobytes())
    source = ir.ExternalTensor(
        "w",
        0,
        values.nbytes,
        ir.DataType.FLOAT,
        shape=ir.Shape(values.shape),
        name="w",
        base_dir=tmp_path,
    )
    tracemalloc.start()
    for make in (integers_of, scales_of, blobs_of):
        for _ in make(source, Scheme(4, 32, ir.DataType.BFLOAT16), "q").chunks():
            pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * streamed.PIECE < values.nbytes
