"""Models with a causal pass: drafts by diffusion, checked by the causal pass."""

from typing import TYPE_CHECKING

import numpy as np

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.regimes.base import Regime, causal_piece_end
from dlmc_runtime.samplers.base import Prediction
from dlmc_runtime.task import Task

if TYPE_CHECKING:
    from dlmc_runtime.row import Row

# The draft's length starts here, doubles when all of it is accepted and halves when less than
# half is (Blaizzy/mlx-vlm); NVIDIA's own code always drafts a block.
_USUAL, _LONGEST = 8, 32


class Speculative(Regime):
    """Prefill, then draft and verify until the answer is long enough.

    A draft begins with a token that is known. Its other positions are denoised both ways; then a
    causal forward stores the whole draft and says what each position should have been. The longest
    prefix that agrees is kept, and the first token that does not is corrected, which becomes the
    known token of the next draft. What the cache holds beyond is overwritten.

    A draft of one token is autoregressive decoding.
    """

    def __init__(self, row: "Row") -> None:
        super().__init__(row)
        alone = row.request.sampler.name == "autoregressive"
        self.longest = 1 if alone else min(row.blocks.length, _LONGEST)
        self.usual = min(self.longest, _USUAL)
        self.length = self.usual

    @property
    def cache_needed(self) -> int:
        """All but the last token of the answer."""
        return self.row.answer_end - 1

    @property
    def block_needed(self) -> int:
        """The longest draft."""
        return self.longest

    @property
    def head_needed(self) -> int:
        """The longest draft."""
        return self.longest

    @property
    def prompt_end(self) -> int:
        """Where the prompt ends."""
        return self.row.prompt_length

    def piece_end(self, position: int) -> int | None:
        """Return where a causal piece ends."""
        return causal_piece_end(position)

    def begin(self) -> None:
        """Nothing of the answer is final before the first forward."""
        self.row.firm = self.row.prompt_length

    def task(self, chunk: int) -> Task:
        """Return what the next forward must do; a prefill feeds at most ``chunk`` positions."""
        row = self.row
        if row.cached < row.prompt_length:
            end = min(row.cached + chunk, row.prompt_length)
            return self._causal("prefill", row.cached, end, end)
        if row.open:
            return Task(
                "denoise", row.start, row.end, row.start, row.end, visible=row.start, adapter=True
            )
        return self._causal("verify", row.start, row.end, row.start + 1)

    def _causal(self, kind: str, start: int, end: int, head_start: int) -> Task:
        return Task(
            "verify" if kind == "verify" else "prefill",
            start,
            end,
            head_start,
            end + 1,
            own="causal",
            visible=start,
            shift=1,
            at=start,
            kept=end - start,
        )

    def temperature(self, task: Task) -> float:
        """Return the temperature; a part of the prompt that is not its last gives no token."""
        gives = task.kind != "prefill" or task.end == self.row.prompt_length
        return self.row.request.sampler.temperature if gives else 0.0

    def done(self, task: Task, prediction: Prediction, said: Outputs) -> None:
        """Take note of a forward."""
        del said
        row = self.row
        if task.kind == "denoise":
            row.decide(prediction)
            return
        if task.kind == "prefill":
            row.cached = task.end
            if row.cached == row.prompt_length:
                row.plant(row.cached, int(prediction.tokens[0]))
                self._advance(row.cached)
            return
        self._verified(prediction)

    def _verified(self, prediction: Prediction) -> None:
        row, right = self.row, prediction.tokens
        fed = row.end - row.start
        agrees = right[:-1] == row.canvas[row.start + 1 : row.end]
        accepted = 1 + int(np.logical_and.accumulate(agrees).sum())
        after = row.start + 1
        row.canvas[after : after + accepted] = right[:accepted]
        row.masked[after : after + accepted] = False
        row.canvas[after + accepted :] = row.mask_id
        row.masked[after + accepted :] = True
        if accepted == fed:
            self.length = min(self.longest, self.length * 2)
        elif accepted <= max(1, fed // 2):
            self.length = max(self.usual, self.length // 2)
        row.cached = row.start + accepted
        self._advance(row.cached)

    def _advance(self, start: int) -> None:
        """Begin a draft with the known token at ``start``."""
        row = self.row
        row.firm = start + 1
        row.look_for_end()
        row.finished |= row.settled
        row.enter(start, min(start + self.length, row.answer_end - 1))
        row.end = max(row.end, start + 1)
