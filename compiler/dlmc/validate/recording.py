"""Recording the states a real generation goes through, to replay them on another engine."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from dlmc_runtime.cache import Cache
from dlmc_runtime.engines.base import Engine, Inputs, Outputs, Store
from dlmc_runtime.manifest import Manifest, Profile


@dataclass(frozen=True)
class State:
    """One forward: what went in, what the head said, what was stored."""

    inputs: Inputs
    before: Cache
    stores: tuple[Store, ...]
    outputs: Outputs
    after: Cache

    def replay(self, engine: Engine) -> tuple[Outputs, Cache]:
        """Run the same forward on another engine; return its outputs and the cache after it."""
        cache = engine.cache(len(self.before.filled), self.before.size)
        copy_cache(self.before, cache)
        inputs = engine.inputs(self.inputs.profile)
        for name, array in inputs.arrays().items():
            array[...] = self.inputs.arrays()[name]
        return engine.forward(inputs, cache, self.stores), cache


def copy_cache(source: Cache, target: Cache) -> None:
    """Make ``target`` hold what ``source`` holds."""
    for name, past in source.past.items():
        target.past[name][...] = past
    target.filled[...] = source.filled


class RecordingEngine:
    """Passes every call on and keeps what went through."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.states: list[State] = []

    @property
    def manifest(self) -> Manifest:
        """The engine's manifest."""
        return self.engine.manifest

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The engine's profiles."""
        return self.engine.profiles

    def cache(self, batch: int, size: int) -> Cache:
        """Allocate an empty cache."""
        return self.engine.cache(batch, size)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate input buffers."""
        return self.engine.inputs(profile)

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser and record the forward."""
        before = deepcopy(cache)
        outputs = self.engine.forward(inputs, cache, stores)
        self.states.append(
            State(deepcopy(inputs), before, tuple(stores), deepcopy(outputs), deepcopy(cache))
        )
        return outputs

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


def stored(cache: Cache, stores: Sequence[Store]) -> dict[str, NDArray[Any]]:
    """Return, by cache name and row, the positions that ``stores`` have just appended."""
    found = {}
    for store in stores:
        end = int(cache.filled[store.row])
        for name, past in cache.past.items():
            found[f"{name}[{store.row}]"] = past[store.row, :, end - store.count : end]
    return found
