import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dlmc_runtime.bfloat16 import from_float32, to_float32

FLOATS = hnp.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32, allow_nan=False))


@given(FLOATS)
def test_rounding_is_that_of_torch(values):
    wanted = torch.from_numpy(values.copy()).to(torch.bfloat16)
    np.testing.assert_array_equal(
        from_float32(values), wanted.view(torch.int16).numpy().view(np.uint16)
    )
    np.testing.assert_array_equal(to_float32(from_float32(values)), wanted.float().numpy())


def test_every_bfloat16_survives():
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    back = from_float32(to_float32(bits))
    numbers = ~np.isnan(to_float32(bits))
    np.testing.assert_array_equal(back[numbers], bits[numbers])
    assert np.isnan(to_float32(back[~numbers])).all()


def test_shapes_and_strides_are_kept():
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    assert to_float32(from_float32(values)).shape == (4, 2, 3)
    np.testing.assert_array_equal(to_float32(from_float32(values)), values)
