"""Token editing: LLaDA2.1 fills masks and corrects what it has filled in the same forwards."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Prediction,
    Rewritten,
    Sampler,
    best,
    needed,
)


class TokenEditing(Sampler):
    """Commit what is sure, and replace decided tokens where the model is now sure of another.

    A step fills the masks that are surer than ``threshold``, at least the best ``least`` of them,
    and gives every other position of the block that was not given the predicted token where that
    is another one and surer than ``edit_threshold``. The block is final once a forward saw no mask
    and replaced nothing, or once ``max_post_steps`` forwards saw no mask.

    ``threshold`` 0.7 with ``edit_threshold`` 0.5 is what LLaDA2.1 calls its quality mode, 0.5 with
    0 its speed mode.
    """

    source: ClassVar[str] = (
        "LLaDA2.1 `generate`, as in ZHZisZZ/dllm `dllm/pipelines/llada21`, arXiv 2602.08676"
    )
    tempered: ClassVar[bool] = True
    limited: ClassVar[bool] = False
    revises: ClassVar[bool] = True
    rewrites: ClassVar[bool] = True
    heeds: ClassVar[frozenset[str]] = frozenset(
        {"threshold", "edit_threshold", "max_post_steps", "least"}
    )
    defaults: ClassVar[Mapping[str, float]] = {
        "threshold": 0.95,
        "edit_threshold": 0.9,
        "max_post_steps": 16,
        "least": 1,
    }

    def begin(self) -> None:
        """Count forwards without masks from 0."""
        self._post = 0

    def wanted(self, block: BlockState) -> int:
        """Return how many masks this step fills at least."""
        del block
        return int(self.option("least"))

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the masks to fill, bool [n]."""
        sure: Bools = block.masked & (prediction.confidence > self.option("threshold"))
        wanted = self.wanted(block)
        return sure if sure.sum() >= wanted else best(prediction.confidence, block.masked, wanted)

    def replaced(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the decided positions that take another token, bool [n]."""
        given = needed(block.given, "the positions that were given")
        differs = prediction.tokens != needed(block.tokens, "the block's tokens")
        sure = prediction.confidence > self.option("edit_threshold")
        found: Bools = ~block.masked & ~given & differs & sure
        return found

    def rewrite(self, prediction: Prediction, block: BlockState) -> Rewritten:
        """Return the block with masks filled and tokens replaced."""
        without_masks = not block.masked.any()
        self._post += without_masks
        filled, replaced = self.select(prediction, block), self.replaced(prediction, block)
        tokens = np.where(
            filled | replaced, prediction.tokens, needed(block.tokens, "the block's tokens")
        )
        masked = block.masked & ~filled
        still = without_masks and not replaced.any()
        spent = self._post >= self.option("max_post_steps") and not masked.any()
        return Rewritten(tokens, masked, final=still or spent)
