"""What the denoising loop asks of a regime."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.samplers.base import Prediction
from dlmc_runtime.task import Task

if TYPE_CHECKING:
    from dlmc_runtime.row import Row


class Regime:
    """Takes one row through its sequence, forward by forward."""

    def __init__(self, row: "Row") -> None:
        self.row = row

    @property
    def cache_needed(self) -> int:
        """Positions that the cache must hold."""
        raise NotImplementedError

    @property
    def block_needed(self) -> int:
        """Most positions that a forward feeds; a prefill may come in parts."""
        raise NotImplementedError

    @property
    def head_needed(self) -> int:
        """Most positions that a forward reads."""
        raise NotImplementedError

    def begin(self) -> None:
        """Prepare the row for its first forward."""
        raise NotImplementedError

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do; a prefill feeds at most ``chunk`` positions."""
        raise NotImplementedError

    def done(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        """Take note of a forward: ``prediction`` and ``said`` are of the positions it read."""
        raise NotImplementedError

    def temperature(self, task: Task) -> float:
        """Return the temperature at which the tokens that a forward reads are drawn."""
        drawn = task.kind in ("denoise", "refresh")
        return self.row.request.sampler.temperature if drawn else 0.0

    def piece_end(self, position: int) -> int | None:
        """Return where the cache's piece that begins at ``position`` ends; None for no such.

        What a piece holds depends on the tokens before its end alone, so that rows that have these
        tokens in common may share it.
        """
        del position
        return None

    @property
    def prompt_end(self) -> int:
        """Where the positions end that are stored before the first is denoised."""
        return 0

    def expected(self, task: Task) -> NDArray[np.float32] | None:
        """Return the embeddings to expect at the positions fed, [n,hidden]; None for none."""
        del task
        return None

    def tokens_per_forward(self, tokens: int) -> float:
        """Return the tokens of the answer, of which there are ``tokens``, over forwards (TPF)."""
        return tokens / self.row.forwards if self.row.forwards else 0.0

    def skip_idle(self) -> None:
        """Leave out steps at which the sampler commits nothing, whatever the model says."""
        row = self.row
        while row.open and row.sampler.idle(row.state()):
            row.step += 1


_CAUSAL_PIECE = 32  # positions; a compromise between copies to make and tokens to have in common


def causal_piece_end(position: int) -> int:
    """Return where the piece of a causally written cache ends that begins at ``position``."""
    return (position // _CAUSAL_PIECE + 1) * _CAUSAL_PIECE
