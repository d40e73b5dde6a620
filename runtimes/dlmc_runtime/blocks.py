"""How a sequence falls into blocks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.manifest import Attention


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``length`` positions, the first of which would begin at ``-offset``.

    Attributes:
        length: positions of a block.
        offset: 0, or what makes a later position the first one of a block.
        end: length of the sequence, which may cut the last block.
    """

    length: int
    offset: int
    end: int

    @classmethod
    def of(cls, attention: Attention, length: int, prompt: int, answer_end: int) -> "Blocks":
        """Return the blocks of a prompt and the answer after it.

        Args:
            attention: of the model; one that sees the whole sequence begins with the answer.
            length: positions of a block.
            prompt: positions of the prompt.
            answer_end: positions of prompt and answer.
        """
        by_answer = attention.regime == "full" or attention.aligned_to == "answer"
        offset = -prompt % length if by_answer else 0
        cut = attention.regime == "full" or attention.last_block == "cut"
        whole = -(-(answer_end + offset) // length) * length - offset
        return cls(length, offset, answer_end if cut else whole)

    def start_of(self, position: int) -> int:
        """Return where the block that holds ``position`` begins."""
        return max((position + self.offset) // self.length * self.length - self.offset, 0)

    def end_of(self, position: int) -> int:
        """Return where the block that holds ``position`` ends."""
        after = ((position + self.offset) // self.length + 1) * self.length - self.offset
        return min(after, self.end)

    def index(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the block that holds each position."""
        return (positions + self.offset) // self.length
