"""Tensors that are computed from a weight piece by piece, when they are written."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dlmc_runtime.errors import BundleError, CheckpointError

PIECE = 1 << 22
"""Values in memory at a time: rows of a weight are read until there are so many, at least one."""

NIBBLE = 4

Pieces = Callable[[], Iterator[NDArray[Any]]]


class Streamed(ir.LazyTensor):
    """A tensor whose values are made when asked for, in pieces along its first axis.

    Args:
        dtype: what an engine reads; 4-bit values come one a byte and are packed in pairs.
        shape: what an engine reads.
        pieces: yields arrays that hold the values in order, whatever shape each has.
        name: of the initializer.
        source: the weight that it is another form of.
    """

    def __init__(
        self,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        pieces: Pieces,
        name: str,
        source: ir.TensorProtocol,
    ) -> None:
        super().__init__(self._whole, dtype, ir.Shape(shape), name=name)
        self.pieces, self.source = pieces, source

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, as a file holds them: little-endian, 4-bit values in pairs."""
        if self.dtype.bitwidth != NIBBLE:
            for piece in self.pieces():
                yield piece.tobytes()
            return
        odd = np.zeros(0, np.uint8)
        for piece in self.pieces():
            nibbles = np.concatenate((odd, piece.reshape(-1).astype(np.int8).view(np.uint8)))
            even = len(nibbles) // 2 * 2
            odd = nibbles[even:]
            yield pack(nibbles[:even]).tobytes()
        if len(odd):
            yield pack(np.append(odd, np.uint8(0))).tobytes()

    def _whole(self) -> ir.TensorProtocol:
        """Return all values at once: for small tensors, and for tests."""
        values = np.concatenate([piece.reshape(-1) for piece in self.pieces()])
        values = values.astype(self.dtype.numpy(), copy=False).reshape(self.shape.numpy())
        return ir.Tensor(values, dtype=self.dtype, name=self.name)


def pack(nibbles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pack an even number of 4-bit values in pairs, the first in the low half of its byte."""
    low, high = nibbles[::2] & np.uint8(0xF), nibbles[1::2] << np.uint8(4)
    packed: NDArray[np.uint8] = np.bitwise_or(low, high)
    return packed


def rows(source: ir.TensorProtocol) -> Iterator[NDArray[np.float32]]:
    """Yield the values of a weight as float32, some rows [r, ...] at a time.

    Raises:
        BundleError: its file ends before the tensor does.
        CheckpointError: a value is not a number, or infinite.
    """
    if isinstance(source, Interleaved):
        for half in source.experts():
            yield from _finite(half, source)
        return
    yield from _finite(_mapped(source), source)


def _finite(values: NDArray[Any], source: ir.TensorProtocol) -> Iterator[NDArray[np.float32]]:
    step = max(1, PIECE // max(1, int(np.prod(values.shape[1:]))))
    for start in range(0, len(values), step):
        piece = np.asarray(values[start : start + step]).astype(np.float32)
        if not np.isfinite(piece).all():
            raise CheckpointError(
                f"the weight {source.name!r} holds values that are no finite numbers",
                "export a checkpoint that was not damaged in training or conversion",
            )
        yield piece


class Interleaved(ir.LazyTensor):
    """Experts' weights [E,2I,in] with the rows of gate and up in turns, as rows [E*2I,in].

    Args:
        source: the weights with all rows of the gate first.
    """

    def __init__(self, source: ir.TensorProtocol) -> None:
        experts, height, width = source.shape.numpy()
        super().__init__(
            self._whole, source.dtype, ir.Shape((experts * height, width)), name=source.name
        )
        self.source = source

    def experts(self) -> Iterator[NDArray[Any]]:
        """Yield the rows of one expert at a time, [2I,in], in the type they are stored in."""
        for expert in _mapped(self.source):
            gate, up = np.split(np.asarray(expert), 2)
            yield np.stack((gate, up), axis=1).reshape(expert.shape)

    def _whole(self) -> ir.TensorProtocol:
        """Return all values at once, for tests."""
        return ir.Tensor(np.concatenate(list(self.experts())), dtype=self.dtype, name=self.name)


def as_rows(source: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a weight [E,out,in] as rows [E*out,in], without reading it if it lies in a file."""
    experts, height, width = source.shape.numpy()
    shape = ir.Shape((experts * height, width))
    if isinstance(source, ir.ExternalTensor):
        return ir.ExternalTensor(
            source.location,
            source.offset,
            source.length,
            source.dtype,
            shape=shape,
            name=source.name or "",
            base_dir=source.base_dir,
        )
    return ir.Tensor(source.numpy().reshape(shape.numpy()), dtype=source.dtype, name=source.name)


def _mapped(source: ir.TensorProtocol) -> NDArray[Any]:
    """Return a weight [n, ...] without reading it, if it lies in a file."""
    if not isinstance(source, ir.ExternalTensor):
        return np.atleast_1d(source.numpy())
    shape = source.shape.numpy() or (1,)
    try:
        return np.memmap(source.path, source.dtype.numpy(), "r", source.offset or 0, shape)
    except (OSError, ValueError) as error:
        raise BundleError(f"{source.path} cannot be read ({error})", "export it again") from None


def converted(source: ir.TensorProtocol, dtype: ir.DataType, name: str) -> Streamed:
    """Return ``source`` rounded to ``dtype``, to nearest even.

    Reading it raises:
        CheckpointError: a value is not finite, or too large for ``dtype``.
    """

    def pieces() -> Iterator[NDArray[Any]]:
        for piece in rows(source):
            with np.errstate(over="ignore"):
                low = piece.astype(dtype.numpy())
            if not np.isfinite(low).all():
                raise too_large(source, piece, dtype)
            yield low

    return Streamed(dtype, tuple(source.shape.numpy()), pieces, name, source)


class Copied(Streamed):
    """A tensor of another file, to be written byte for byte."""

    def __init__(self, source: ir.ExternalTensor) -> None:
        shape = tuple(source.shape.numpy())
        super().__init__(source.dtype, shape, self._values, str(source.name), source)
        self._place = (source.path, source.offset or 0, source.nbytes)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in pieces.

        Raises:
            BundleError: the file ends before the tensor does.
        """
        path, offset, left = self._place
        try:
            with open(path, "rb") as file:  # noqa: PTH123  (the library gives paths as text)
                file.seek(offset)
                while left and (piece := file.read(min(left, PIECE))):
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise BundleError(f"{path} cannot be read ({error})", "export it again") from None
        if left:
            raise BundleError(f"{path} ends before {self.name!r} does", "export it again")

    def _values(self) -> Iterator[NDArray[Any]]:
        yield _mapped(self.source)


def too_large(
    source: ir.TensorProtocol, values: NDArray[np.float32], dtype: ir.DataType
) -> CheckpointError:
    """Return the error for values of a weight that ``dtype`` cannot hold."""
    return CheckpointError(
        f"the weight {source.name!r} holds {np.abs(values).max():g}, too large for"
        f" {dtype.name.lower()}",
        "lower to bfloat16 instead",
    )
