"""DiffusionGemma's sampler: what is uncertain becomes noise again, until the canvas settles."""

from collections import deque
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dlmc_runtime.samplers.base import (
    BlockState,
    Bools,
    Floats,
    Ints,
    Prediction,
    Sampler,
    marked,
    needed,
    ranked,
)


class Renoise(Sampler):
    """Keep draws of least entropy, put random tokens elsewhere, until the best tokens settle.

    A draw is kept for the next step while the entropies below its own add up to at most
    ``entropy_bound``; what is kept is decided anew at every step. A canvas is done after ``steps``,
    or once its best tokens are those of the last ``stability_threshold`` steps and the mean
    entropy is below ``confidence_threshold``. Its best tokens are then what is committed.
    """

    source: ClassVar[str] = "transformers `models/diffusion_gemma`; the bound: arXiv 2505.24857"
    tempered: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"entropy", "noise"})
    heeds: ClassVar[frozenset[str]] = frozenset(
        {"steps", "entropy_bound", "t_min", "t_max", "stability_threshold", "confidence_threshold"}
    )
    defaults: ClassVar[Mapping[str, float]] = {
        "steps": 48,
        "entropy_bound": 0.1,
        "t_min": 0.4,
        "t_max": 0.8,
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
    }

    def begin(self) -> None:
        """Forget the steps before: a canvas begins."""
        self._history: deque[Ints] = deque(maxlen=int(self.option("stability_threshold")))

    @property
    def steps(self) -> int:
        """Most steps of a canvas."""
        return int(self.option("steps"))

    def temperature(self, step: int) -> float:
        """Return the temperature of a step, counted from 0, in the reference's float32.

        It begins at ``t_max`` and falls by equal parts, of which the last would reach ``t_min``.
        """
        coldest, hottest = self.option("t_min"), self.option("t_max")
        left = np.float32(self.steps - step) / np.float32(self.steps)
        return float(np.float32(coldest) + np.float32(hottest - coldest) * left)

    def select(self, prediction: Prediction, block: BlockState) -> Bools:
        """Return the positions whose draw is kept for the next step, bool [n]; always one."""
        entropy = needed(prediction.entropy, "entropies")
        order = ranked(-entropy, block.masked)
        before = np.concatenate(([0.0], np.cumsum(entropy[order])[:-1]))
        return marked(block.masked, order[before <= self.option("entropy_bound")])

    def settled(self, best: Ints, entropy: Floats) -> bool:
        """Take note of a step's best tokens, int64 [n]; return whether the canvas is done.

        The history of a canvas begins empty: with a threshold of 1 its second step may be the
        last. ``entropy`` is float64 [n], in nats.
        """
        stable = len(self._history) == self._history.maxlen and all(
            np.array_equal(best, before) for before in self._history
        )
        self._history.append(best.copy())
        # Rounding may make an entropy of nothing negative: at a threshold of 0 nothing settles.
        mean = max(float(entropy.mean()), 0.0)
        return stable and mean < self.option("confidence_threshold")


def random_tokens(uniform: Floats, vocab_size: int) -> Ints:
    """Return a token for each number in [0, 1), int64 [n]: every id is as probable."""
    return np.floor(uniform * vocab_size).astype(np.int64)
