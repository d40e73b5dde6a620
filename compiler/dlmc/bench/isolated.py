"""One profile at a time: a forward of the right shape, again and again.

Ids are drawn from those a model may predict, every cached position is in use and everything
may attend to everything, so that no engine can leave anything out.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlmc.bench.timing import Kind
from dlmc_runtime.cache import Cache, Contents, cache_shapes
from dlmc_runtime.engines.base import Engine, Inputs, Store
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.profiles import ProfileTable

_LEAST = 3
_WARM_UP = 2


@dataclass(frozen=True)
class Use:
    """A profile, and what the loop uses it for."""

    kind: Kind
    profile: Profile


def uses(manifest: Manifest, profiles: Sequence[Profile]) -> list[Use]:
    """Return what the loop does with which profile, for every batch size and cache.

    Families that see the whole sequence denoise; the longest profile of an approximate cache
    renews it. The others prefill in the longest profile of a cache and denoise and commit in the
    smallest that holds a block.
    """
    if manifest.attention.regime == "full":
        whole_canvas = max(profile.block for profile in profiles)
        renewing = [p for p in profiles if p.cache and p.block == whole_canvas]
        return [Use("refresh" if p in renewing else "denoise", p) for p in profiles]
    table, length = ProfileTable(profiles), manifest.attention.block_length
    found: list[Use] = []
    for batch, cache in dict.fromkeys((p.batch, p.cache) for p in table.profiles):
        same = [p for p in table.profiles if (p.batch, p.cache) == (batch, cache)]
        whole = [p for p in same if p.block >= length and p.rows >= length]
        if cache >= length and max(p.block for p in same) >= length:
            found.append(Use("prefill", max(same, key=lambda p: (p.block, -p.rows))))
        if whole:
            kinds: tuple[Kind, ...] = ("denoise", "commit") if cache >= length else ("denoise",)
            found += [Use(kind, whole[0]) for kind in kinds]
    return found


class Probe:
    """Runs one use of an engine."""

    def __init__(self, engine: Engine, use: Use, seed: int = 0) -> None:
        self.engine, self.use = engine, use
        draws = np.random.default_rng(seed)
        self.inputs: Inputs = engine.inputs(use.profile)
        self.cache: Cache = engine.cache(use.profile.batch, use.profile.cache)
        self._fill(draws)
        length = engine.manifest.attention.block_length
        fed = min(use.profile.block, use.profile.cache)
        whole = fed if use.kind == "refresh" else fed // length * length
        count = length if use.kind == "commit" else whole
        rows = range(use.profile.batch) if use.kind != "denoise" else range(0)
        self.stores = [Store(row, count) for row in rows]
        self.contents = self._contents(draws, count if self.stores else 0)
        self.restore()

    def _fill(self, draws: np.random.Generator) -> None:
        profile, manifest, inputs = self.use.profile, self.engine.manifest, self.inputs
        allowed = np.setdiff1d(np.arange(manifest.model.vocab_size), manifest.tokens.suppressed)
        inputs.input_ids[...] = draws.choice(allowed, inputs.input_ids.shape)
        last = manifest.model.max_position_embeddings - profile.block
        inputs.position_ids[...] = max(min(profile.cache, last), 0) + np.arange(profile.block)
        for mask in inputs.masks():
            mask[...] = True
            if self.use.kind == "refresh":  # as the loop does it: what is renewed is not looked at
                mask[..., : -profile.block] = False
        reads = self.use.kind in ("denoise", "refresh")
        if inputs.denoising is not None:
            inputs.denoising[...] = reads
        inputs.head_rows[...] = np.arange(profile.rows) if reads else 0

    def _contents(self, draws: np.random.Generator, free: int) -> Contents:
        """Return a cache in which all but the last ``free`` positions are committed."""
        model, profile = self.engine.manifest.model, self.use.profile
        shapes = cache_shapes(model, profile.batch, profile.cache)
        drawn = {
            shape: draws.standard_normal(shape, np.float32)
            for shape in dict.fromkeys(shapes.values())
        }
        filled = np.full(profile.batch, profile.cache - free, np.int64)
        return Contents({name: drawn[shape] for name, shape in shapes.items()}, filled)

    def restore(self) -> None:
        """Give the cache its first contents again."""
        if self.use.profile.cache:
            self.cache.restore(self.contents)

    def seconds(self) -> float:
        """Run one forward and return how long it took."""
        began = time.perf_counter()
        self.engine.forward(self.inputs, self.cache, self.stores)
        took = time.perf_counter() - began
        if self.stores:
            self.restore()
        return took


def measure(engine: Engine, use: Use, repeats: int, budget: float) -> list[float]:
    """Return the seconds of up to ``repeats`` forwards, after a warm-up.

    Args:
        engine: what to run.
        use: what for.
        repeats: how many at most.
        budget: seconds after which three are enough.
    """
    probe = Probe(engine, use)
    for _ in range(_WARM_UP):
        probe.seconds()
    times: list[float] = []
    while len(times) < repeats and (len(times) < _LEAST or sum(times) < budget):
        times.append(probe.seconds())
    return times
