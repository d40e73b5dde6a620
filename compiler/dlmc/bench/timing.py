"""An engine that notes what each forward was for and how long it took."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dlmc_runtime.cache import Cache
from dlmc_runtime.engines.base import Engine, Inputs, Outputs, Store
from dlmc_runtime.manifest import Manifest, Profile

Kind = Literal["prefill", "refresh", "denoise", "commit"]
KINDS: tuple[Kind, ...] = ("prefill", "refresh", "denoise", "commit")


@dataclass(frozen=True)
class Forward:
    """One run of a denoiser.

    Attributes:
        kind: what for.
        positions: how many it computed, padding included.
        seconds: how long it took.
        profile: the engine's, None where there are none.
    """

    kind: Kind
    positions: int
    seconds: float
    profile: Profile | None = None


class TimingEngine:
    """Passes every call on and keeps what each forward cost.

    The kind of a forward follows from what it stores and when: rows prefill first, by themselves,
    so what stores before the batch's first denoising is a prefill and what stores after it a
    commit, also where other rows are denoised in the same forward. What stores and still holds
    masks is a denoising that leaves its block behind; a model that sees the whole sequence stores
    only where it renews its approximate cache. The time is that of `Engine.forward`: the library's
    call and, where something is stored, the copy into the cache.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.forwards: list[Forward] = []
        self._denoised = False

    @property
    def manifest(self) -> Manifest:
        """The engine's manifest."""
        return self.engine.manifest

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The engine's profiles."""
        return self.engine.profiles

    def cache(self, batch: int, size: int) -> Cache:
        """Allocate an empty cache: a batch begins."""
        self._denoised = False
        return self.engine.cache(batch, size)

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate input buffers."""
        return self.engine.inputs(profile)

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser and note the forward."""
        kind = self._kind(inputs, stores)
        self._denoised |= kind == "denoise"
        began = time.perf_counter()
        outputs = self.engine.forward(inputs, cache, stores)
        seconds = time.perf_counter() - began
        profile = inputs.profile
        self.forwards.append(Forward(kind, profile.batch * profile.block, seconds, profile))
        return outputs

    def _kind(self, inputs: Inputs, stores: Sequence[Store]) -> Kind:
        if not stores:
            return "denoise"
        if self.manifest.attention.regime == "full":
            return "refresh"
        stored = [inputs.input_ids[store.row, : store.count] for store in stores]
        if any((ids == self.manifest.tokens.mask).any() for ids in stored):
            return "denoise"
        return "commit" if self._denoised else "prefill"

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
