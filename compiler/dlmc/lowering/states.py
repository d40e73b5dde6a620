"""Denoising states to calibrate with: real forwards at chosen noise levels."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc.lowering.calibrate import Feeds
from dlmc_runtime.cache import Cache
from dlmc_runtime.engines.base import PARTNER, Engine, Inputs, Outputs, Store
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.row import Request

NOISE_LEVELS = (1.0, 0.75, 0.5, 0.25, 0.0)
"""Shares of the active block that are still masked; 0 is a forward that only stores."""


def record_states(
    generator: Generator, requests: Sequence[Request], levels: Sequence[float] = NOISE_LEVELS
) -> list[Feeds]:
    """Generate, and return for every request the forward nearest to each noise level.

    A sampler that commits many positions at once passes few levels; ask for one that takes a
    forward a position (``threshold`` unset) to meet all of them.

    Args:
        generator: an engine of the bundle, or its reference.
        requests: what to generate from, one after the other.
        levels: shares of masked positions in the active block.

    Returns:
        The graph's inputs by name, caches in float32; no forward twice.
    """
    states = []
    for request in requests:
        watcher = _Watcher(generator.engine, levels)
        Generator(watcher, generator.text).run([request])
        states += watcher.states
    return states


class _Watcher:
    """Passes every call on and keeps the inputs of the forwards nearest to the levels."""

    def __init__(self, engine: Engine, levels: Sequence[float]) -> None:
        self._engine = engine
        self._nearest: dict[float, tuple[float, int]] = dict.fromkeys(levels, (np.inf, -1))
        self._kept: dict[int, Feeds] = {}
        self._count = 0

    @property
    def states(self) -> list[Feeds]:
        """What was kept, in the order it ran."""
        return [self._kept[number] for number in sorted(self._kept)]

    @property
    def manifest(self) -> Manifest:
        """The engine's manifest."""
        return self._engine.manifest

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The engine's profiles."""
        return self._engine.profiles

    def cache(self, batch: int, size: int) -> Cache:
        """Allocate an empty cache."""
        return self._engine.cache(batch, size)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate input buffers."""
        return self._engine.inputs(profile)

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser; keep what goes in where no earlier forward was nearer to a level."""
        before = cache.contents().past if stores else None
        outputs = self._engine.forward(inputs, cache, stores)
        level = 0.0 if stores else self._level(inputs, outputs)
        near = [one for one, best in self._nearest.items() if abs(level - one) < best[0]]
        if near:
            self._kept[self._count] = {
                **{name: array.copy() for name, array in inputs.arrays().items()},
                **(cache.contents().past if before is None else before),
            }
            for one in near:
                self._nearest[one] = (abs(level - one), self._count)
            wanted = {number for _, number in self._nearest.values()}
            self._kept = {n: feeds for n, feeds in self._kept.items() if n in wanted}
        self._count += 1
        return outputs

    def close(self) -> None:
        """Leave the engine open: it is not the watcher's own."""

    def _level(self, inputs: Inputs, outputs: Outputs) -> float:
        """Return the share of masked positions among those that the first row asks about.

        Where no mask tells, it is how uncertain they are, as a share of knowing nothing.
        """
        rows, mask = np.unique(inputs.head_rows[0], return_index=True), self.manifest.tokens.mask
        if mask is None:
            entropy = outputs.tempered_entropy[0, rows[1]]
            return float(entropy.mean() / np.log(self.manifest.model.vocab_size))
        return float(np.mean(inputs.input_ids[0, rows[0]] == mask))


def save_states(states: Sequence[Feeds], folder: Path) -> list[Path]:
    """Write states as ``.npz`` files that NVIDIA Model Optimizer takes as calibration data.

    States of one shape share a file, ``states-<number>.npz``, stacked along the batch axis under
    the names of the graph's inputs.

    Raises:
        DlmcError: the disk refuses.
    """
    groups: dict[tuple[Any, ...], list[Feeds]] = defaultdict(list)
    for state in states:
        groups[tuple((name, array.shape) for name, array in state.items())].append(state)
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, group in enumerate(groups.values()):
            stacked = {name: np.concatenate([one[name] for one in group]) for name in group[0]}
            paths.append(folder / f"states-{number}.npz")
            np.savez(paths[-1], allow_pickle=False, **stacked)
    except OSError as error:
        raise DlmcError(
            f"cannot write states to {folder} ({error.strerror})", "check the path and its rights"
        ) from error
    return paths


def load_states(path: Path, batch: int = 1) -> list[Feeds]:
    """Read states that `save_states` wrote, ``batch`` rows each; rows left over are dropped.

    A row whose partner for guidance is not among them becomes its own.

    Raises:
        DlmcError: the file cannot be read, or is none of these.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            stacked: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise DlmcError(f"{path} holds no states ({error})", "record them again") from error
    count = min((len(array) for array in stacked.values()), default=0)
    states = [
        {name: array[start : start + batch] for name, array in stacked.items()}
        for start in range(0, count - batch + 1, batch)
    ]
    return [_apart(state, batch) for state in states]


def _apart(state: Feeds, batch: int) -> Feeds:
    """Return a state whose rows have no partner outside of it."""
    if PARTNER not in state:
        return state
    partner = state[PARTNER]
    inside = (partner >= 0) & (partner < batch)
    return {**state, PARTNER: np.where(inside, partner, np.arange(batch))}
