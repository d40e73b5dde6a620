"""Nemotron's drafts by diffusion: the causal pass has the last word."""

from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler, best


class LinearSpeculation(Sampler):
    """Draft a block by diffusion, then keep what the causal pass would have said itself.

    Without a threshold the whole draft comes from one forward; with one, each forward of the
    draft fills the positions at least that sure, and the best one. At temperature 0 the text is
    that of `Autoregressive`, whatever the draft says.
    """

    source: ClassVar[str] = "NVIDIA `linear_spec_generate`, as in Blaizzy/mlx-vlm"
    heeds: ClassVar[frozenset[str]] = frozenset({"threshold"})

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions of the draft to fill, bool [n]."""
        if self.config.threshold is None:
            return block.masked.copy()
        sure = block.masked & (prediction.confidence >= self.config.threshold)
        return sure if sure.any() else best(prediction.confidence, block.masked, 1)
