"""Engines whose caches, inputs and answers lie in a device's memory."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import Cache
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines.base import (
    Inputs,
    Outputs,
    Store,
    head_outputs,
    input_shapes,
    plan_dtype,
    tensor_shape,
)
from dlmc_runtime.engines.device_cache import CacheMemory, CachePool, DeviceCache
from dlmc_runtime.engines.memory import Device, Layout
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Manifest, Profile, TensorSpec


class StagedInputs(Inputs):
    """Input buffers that lie in one piece of memory which the device copies from."""

    def __init__(
        self, profile: Profile, manifest: Manifest, layout: Layout, memory: NDArray[np.uint8]
    ) -> None:
        self.memory = memory

        def allocate(name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
            if name not in layout.places:
                raise EngineError(f"the manifest has no input {name}", "export it again")
            array = layout.places[name].of(memory)
            if array.shape != shape or array.dtype != np.dtype(dtype):
                raise EngineError(
                    f"the manifest gives {name} another shape or type", "export it again"
                )
            return array

        super().__init__(profile, input_shapes(manifest, profile), allocate)


@dataclass(frozen=True)
class Buffers:
    """What a profile's inputs and outputs look like in the engine's regions.

    Attributes:
        inputs: what the host fills.
        head: what the host reads.
        rest: what stays on the device: ``present`` and outputs that nobody asked for.
    """

    inputs: Layout
    head: Layout
    rest: Layout

    @classmethod
    def of(cls, profile: Profile, record: EngineRecord, bundle: Bundle) -> "Buffers":
        """Lay the regions out for a profile."""
        manifest, dtype = bundle.manifest, record.cache_dtype
        attention, answered = manifest.attention, head_outputs(manifest)

        def layout(specs: Sequence[TensorSpec]) -> Layout:
            return Layout.of(
                (one.name, tensor_shape(one, profile, attention), plan_dtype(one, dtype))
                for one in specs
            )

        return cls(
            layout([x for x in manifest.inputs if not x.name.startswith("past_key_values.")]),
            layout([x for x in manifest.outputs if x.name in answered]),
            layout([x for x in manifest.outputs if x.name not in answered]),
        )


class DeviceEngine:
    """What such engines share: everything but running the graph.

    All profiles use the same regions, since forwards follow one another on the device's queue.
    Only the head's answers cross to the host; commits are copies on the device.

    A subclass says how the graph is run (`_run`), what it forgets when a cache's memory is freed
    (`_forget`), and what it holds besides (`_release`).
    """

    def __init__(self, bundle: Bundle, record: EngineRecord, device: Device) -> None:
        self.manifest = bundle.manifest
        self.profiles: tuple[Profile, ...] = record.profiles
        self._device, self._open = device, True
        self._buffers = {one: Buffers.of(one, record, bundle) for one in record.profiles}
        self._pool = CachePool(device, self.manifest.model, record.cache_dtype, self._forget)
        sizes = [
            max(region.size for region in regions)
            for regions in zip(
                *((b.inputs, b.head, b.rest) for b in self._buffers.values()), strict=True
            )
        ]
        try:
            self._inputs, self._head, self._rest = map(self._region, sizes)
            self._answers = device.staging(sizes[1])
        except BaseException:
            device.close()
            raise

    def _region(self, size: int) -> int:
        """Allocate memory that lasts as long as the engine."""
        try:
            return self._device.allocate(size)
        except MemoryError as error:
            raise EngineError(
                f"there are no {size} bytes of memory for the engine's buffers",
                "free some, or build with a smaller --batch, --cache or --prefill",
            ) from error

    def cache(self, batch: int, size: int) -> DeviceCache:
        """Allocate an empty cache for ``batch`` rows of ``size`` positions."""
        return self._pool.take(batch, size)

    def inputs(self, profile: Profile) -> StagedInputs:
        """Allocate the input buffers of a profile."""
        self._pool.check_open()
        layout = self._buffers[profile].inputs
        staging = self._device.staging(layout.size)
        return StagedInputs(profile, self.manifest, layout, staging)

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser once, then write what ``stores`` names to the cache.

        Raises:
            EngineError: the device or the library fails, or the engine was closed.
        """
        self._pool.check_open()
        if not isinstance(cache, DeviceCache) or not isinstance(inputs, StagedInputs):
            raise TypeError("the cache or the inputs belong to another engine")
        profile, memory = inputs.profile, cache.memory
        if memory.batch < profile.batch or memory.size != profile.cache:
            raise ValueError(f"a cache of {memory.batch}x{memory.size} for {profile}")
        places = self._buffers[profile].head.places
        answers = self._answers[: self._buffers[profile].head.size]
        try:
            self._device.upload(self._inputs, inputs.memory)
            self._run(profile, memory)
            cache.queue_copies(stores, self._present(profile))
            self._device.download(answers, self._head)
            self._device.synchronize()
        except BaseException as error:
            # What is queued still reads the caller's buffers, which may go with this exception.
            with suppress(EngineError, MemoryError):
                self._device.synchronize()
            if isinstance(error, MemoryError):
                raise EngineError(
                    f"the device has no memory left to run {profile} ({error})",
                    "free some, or build with a smaller --batch, --cache or --prefill",
                ) from error
            raise
        cache.stored(stores)
        return Outputs(**{name: place.of(answers).copy() for name, place in places.items()})

    def _present(self, profile: Profile) -> list[tuple[int, int]]:
        """Return address and T of the block's own keys and values, in the graph's order."""
        places = self._buffers[profile].rest.places.items()
        return [
            (self._rest + place.offset, profile.block)
            for name, place in places
            if name.startswith("present.")
        ]

    def _addresses(self, profile: Profile, memory: CacheMemory) -> dict[str, int]:
        """Return the address of every input and output of the graph."""
        buffers = self._buffers[profile]
        return {
            **buffers.inputs.addresses(self._inputs),
            **memory.addresses,
            **buffers.head.addresses(self._head),
            **buffers.rest.addresses(self._rest),
        }

    def _run(self, profile: Profile, memory: CacheMemory) -> None:
        """Queue one run of the graph in a profile, on the cache in ``memory``."""
        raise NotImplementedError

    def _forget(self, memory: CacheMemory) -> None:
        """Forget what was made for the addresses in ``memory``."""
        raise NotImplementedError

    def _release(self) -> None:
        """Release what the engine holds besides memory; called once."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the engine holds; calling it again does nothing."""
        if not self._open:
            return
        self._open = False
        self._pool.close()
        try:
            self._release()
        finally:
            self._answers = np.empty(0, np.uint8)
            self._device.close()
