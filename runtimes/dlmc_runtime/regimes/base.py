"""What the denoising loop asks of a regime."""

from typing import TYPE_CHECKING

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

    def draws(self, task: Task) -> bool:
        """Return whether the tokens that a forward reads are drawn at the temperature."""
        return task.kind in ("denoise", "refresh")

    def skip_idle(self) -> None:
        """Leave out steps at which the sampler commits nothing, whatever the model says."""
        row = self.row
        while row.open and row.sampler.idle(row.state()):
            row.step += 1
