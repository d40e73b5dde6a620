"""bfloat16 on the host: numpy has no such type, so its bits travel as uint16."""

import numpy as np
from numpy.typing import NDArray


def to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values of bfloat16 ``bits``; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_float32(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the bfloat16 next to each value, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    quiet = (bits >> 16).astype(np.uint16) | np.uint16(0x40)
    return np.where(np.isnan(values), quiet, rounded)
