"""Integers and scales of a weight, a few rows at a time.

Rounding is to nearest (round-to-nearest, RTN) and symmetric: a value is its integer times a scale.
Eight bits share a scale a row, four bits a scale a block of consecutive values of a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dlmc.lowering.streamed import Streamed, pack, rows, too_large

# The largest magnitude is this many steps. 127.5 and 7.5 would do for -128 and -8 as well, but
# kernels that multiply 8-bit integers want a symmetric range; with 4 bits the half step counts.
_STEPS = {8: 127.0, 4: 7.5}
_SMALLEST = 16
_RANGE = {8: (-127, 127), 4: (-8, 7)}


@dataclass(frozen=True)
class Scheme:
    """How a weight [out, in] becomes integers.

    Attributes:
        bits: 8 or 4.
        block: consecutive values of a row that share a scale; 0 for a whole row.
        dtype: type of the scales.
    """

    bits: int
    block: int
    dtype: ir.DataType

    def blocks(self, length: int) -> int:
        """Return how many scales a row of ``length`` values has."""
        return -(-length // self.block) if self.block else 1

    def scales(self, values: NDArray[np.float32]) -> NDArray[Any]:
        """Return the scales [r, blocks] of rows [r, in]: at least one step of what they cover.

        Scales are rounded up, so that no value lies more than half a step from its integer. A
        block of zeros has the smallest scale there is: engines refuse 0.
        """
        dtype = self.dtype.numpy()
        exact = np.abs(self._blocked(values)).max(-1) / np.float32(_STEPS[self.bits])
        with np.errstate(over="ignore"):
            rounded = exact.astype(dtype)
        low = rounded.astype(np.float32) < exact
        rounded[low] = np.nextafter(rounded[low], dtype.type(np.inf))
        scales: NDArray[Any] = np.maximum(rounded, smallest(self.dtype))
        return scales

    def integers(self, values: NDArray[np.float32]) -> NDArray[np.int8]:
        """Return the integers [r, blocks, block] of rows [r, in]; what pads a block is 0."""
        scales = self.scales(values).astype(np.float32)[..., None]
        whole = np.rint(self._blocked(values) / scales)
        integers: NDArray[np.int8] = np.clip(whole, *_RANGE[self.bits]).astype(np.int8)
        return integers

    def _blocked(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Split rows [r, in] into [r, blocks, block], padded with zeros."""
        count, length = values.shape
        size = self.block or length
        padded = np.pad(values, ((0, 0), (0, self.blocks(length) * size - length)))
        return padded.reshape(count, -1, size)


def fitting(bits: int, block: int, source: ir.TensorProtocol, dtype: ir.DataType) -> Scheme:
    """Return the scheme for a weight [out, in] in plain ONNX.

    Blocks that do not divide a row are halved until they do, down to 16; a weight that no block
    divides gets 8 bits and a scale a row.
    """
    if bits == 8:
        return Scheme(8, 0, dtype)
    length = int(source.shape.numpy()[1])
    while length % block and block > _SMALLEST:
        block //= 2
    return Scheme(8, 0, dtype) if length % block else Scheme(4, block, dtype)


def smallest(dtype: ir.DataType) -> Any:
    """Return the smallest normal number of a float type."""
    return dtype.numpy().type(6.104e-05 if dtype == ir.DataType.FLOAT16 else 1.1754944e-38)


def scales_of(source: ir.TensorProtocol, scheme: Scheme, name: str) -> Streamed:
    """Return the scales of a weight [out, in]: [out] for whole rows, else [out, blocks]."""
    count, length = source.shape.numpy()
    shape = (count, scheme.blocks(length)) if scheme.block else (count,)

    def pieces() -> Iterator[NDArray[Any]]:
        for values in rows(source):
            scales = scheme.scales(values)
            if not np.isfinite(scales).all():
                raise too_large(source, values, scheme.dtype)
            yield scales

    return Streamed(scheme.dtype, shape, pieces, name, source)


def integers_of(source: ir.TensorProtocol, scheme: Scheme, name: str) -> Streamed:
    """Return the integers of a weight [out, in] in its own layout, INT8 or INT4."""
    count, length = source.shape.numpy()

    def pieces() -> Iterator[NDArray[Any]]:
        for values in rows(source):
            yield scheme.integers(values).reshape(len(values), -1)[:, :length]

    dtype = ir.DataType.INT8 if scheme.bits == 8 else ir.DataType.INT4
    return Streamed(dtype, (count, length), pieces, name, source)


def blobs_of(source: ir.TensorProtocol, scheme: Scheme, name: str) -> Streamed:
    """Return the integers of a weight as ``MatMulNBits`` reads them: [out, blocks, bytes] uint8.

    They are shifted to be non-negative; where a byte holds two, the first is in its low half.
    """
    count, length = source.shape.numpy()
    half = 1 << (scheme.bits - 1)

    def pieces() -> Iterator[NDArray[Any]]:
        for values in rows(source):
            shifted = (scheme.integers(values).astype(np.int16) + half).astype(np.uint8)
            yield shifted if scheme.bits == 8 else pack(shifted.reshape(-1))

    shape = (count, scheme.blocks(length), scheme.block * scheme.bits // 8)
    return Streamed(ir.DataType.UINT8, shape, pieces, name, source)
