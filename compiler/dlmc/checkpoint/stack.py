"""A parameter whose values lie in several tensors: experts that a checkpoint stores one by one."""

from dataclasses import dataclass

from dlmc.checkpoint.safetensors_header import TensorLocation


@dataclass(frozen=True)
class Stack:
    """Tensors whose bytes, one after the other, are those of one parameter.

    Args:
        parts: the tensors, in order, all of one dtype.
        shape: of the parameter.
    """

    parts: tuple[TensorLocation, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Type of the values, as safetensors names it."""
        return self.parts[0].dtype

    @property
    def length(self) -> int:
        """Bytes of the values."""
        return sum(part.length for part in self.parts)


Weight = TensorLocation | Stack
"""Where the values of a parameter lie."""
