"""Nemotron's causal pass by itself."""

from typing import ClassVar

from dlmc_runtime.samplers.base import BlockState, Bools, Prediction, Sampler


class Autoregressive(Sampler):
    """Commit one token a forward, by the causal pass."""

    source: ClassVar[str] = "NVIDIA `ar_generate`, as in Blaizzy/mlx-vlm"
    tempered: ClassVar[bool] = True
    heeds: ClassVar[frozenset[str]] = frozenset()

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return no position: there is no draft."""
        del prediction
        return block.masked & False
