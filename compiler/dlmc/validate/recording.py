"""Recording the states a real generation goes through, to replay them on another engine."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from dlmc_runtime.cache import Cache, Contents
from dlmc_runtime.engines.base import Engine, Inputs, Outputs, Store
from dlmc_runtime.manifest import Manifest, Profile


@dataclass(frozen=True)
class State:
    """One forward: what went in, what the head said, what was stored."""

    inputs: Inputs
    before: Contents
    stores: tuple[Store, ...]
    outputs: Outputs
    after: Contents

    def replay(self, engine: Engine) -> tuple[Outputs, Contents]:
        """Run the same forward on another engine; return its outputs and the cache after it."""
        cache = engine.cache(len(self.before.filled), self.before.size)
        cache.restore(self.before)
        inputs = engine.inputs(self.inputs.profile)
        for name, array in inputs.arrays().items():
            array[...] = self.inputs.arrays()[name]
        # Copied, because an engine may hand out buffers that it fills again.
        return deepcopy(engine.forward(inputs, cache, self.stores)), cache.contents()


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
        before = cache.contents()
        outputs = self.engine.forward(inputs, cache, stores)
        self.states.append(
            State(deepcopy(inputs), before, tuple(stores), deepcopy(outputs), cache.contents())
        )
        return outputs

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


def stored(cache: Contents, stores: Sequence[Store]) -> dict[str, NDArray[Any]]:
    """Return, by cache name and row, the positions that ``stores`` have just appended."""
    found = {}
    for store in stores:
        end = int(cache.filled[store.row])
        for name, past in cache.past.items():
            found[f"{name}[{store.row}]"] = past[store.row, :, end - store.count : end]
    return found
