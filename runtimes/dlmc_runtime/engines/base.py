"""What the denoising loop asks of an engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.cache import Cache
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Attention, DataType, Manifest, Precision, Profile, TensorSpec

OUTPUTS = (
    "top_ids",
    "top_logits",
    "logsumexp",
    "entropy",
    "tempered_logsumexp",
    "tempered_entropy",
    "sampled_id",
    "sampled_logit",
)
"""What every head answers."""

NEXT_SELF_CONDITIONING = "next_self_conditioning"
"""What only heads of models with self-conditioning answer."""


@dataclass(frozen=True)
class Outputs:
    """The head's answer for R rows of B; candidates are sorted best first.

    ``top_ids`` int64 and ``top_logits`` float32 are [B,R,K]; the others are [B,R]: float32, and
    int64 for ``sampled_id``. ``next_self_conditioning``, float32 [B,R,hidden], is None where the
    graph has none.
    """

    top_ids: NDArray[np.int64]
    top_logits: NDArray[np.float32]
    logsumexp: NDArray[np.float32]
    entropy: NDArray[np.float32]
    tempered_logsumexp: NDArray[np.float32]
    tempered_entropy: NDArray[np.float32]
    sampled_id: NDArray[np.int64]
    sampled_logit: NDArray[np.float32]
    next_self_conditioning: NDArray[np.float32] | None = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what there is, by graph output."""
        named = {name: getattr(self, name) for name in (*OUTPUTS, NEXT_SELF_CONDITIONING)}
        return {name: array for name, array in named.items() if array is not None}

    def row(self, index: int, start: int, end: int) -> "Outputs":
        """Return what was said about head rows ``start`` to ``end`` of one row: [n] and [n,K]."""
        return Outputs(**{k: array[index, start:end] for k, array in self.arrays().items()})

    def led_by(self, first: "Outputs") -> "Outputs":
        """Return a copy of one row's outputs in which those of ``first`` stand at the front."""
        return Outputs(
            *(
                np.concatenate((getattr(first, name), getattr(self, name)[len(first.logsumexp) :]))
                for name in OUTPUTS
            )
        )

    def copy(self) -> "Outputs":
        """Return a copy, which stays as it is when the engine runs again."""
        return Outputs(**{name: array.copy() for name, array in self.arrays().items()})


Allocate = Callable[[str, tuple[int, ...], type[np.generic]], NDArray[Any]]
"""Returns a zeroed array for the graph input of a name, with this shape and type."""


def _on_the_heap(name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    del name
    return np.zeros(shape, dtype)


SLIDING_MASK, ADAPTER, GUIDANCE, PARTNER, SELF_CONDITIONING, DENOISING = (
    "sliding_attention_mask",
    "adapter",
    "guidance",
    "partner",
    "self_conditioning",
    "denoising",
)
"""Graph inputs that only some bundles have."""


class Inputs:
    """Input buffers of one profile, allocated once and filled in place before each forward.

    Args:
        profile: gives them their shapes.
        shapes: those of the graph's inputs, by name: ones that not every bundle has are allocated
            if they are among them. See `input_shapes`.
        allocate: where an engine wants them in memory of its own.

    Attributes:
        sliding_attention_mask: bool [B,1,T,C+T], for layers that see a window, or [B,1,T,S+T] where
            they keep only the last S positions; None without such.
        adapter: float32 [B], how much of the low-rank adapter a row gets, 0 or 1; None without one.
        guidance: float32 [B], the scale w of classifier-free guidance; None in a head without it.
        partner: int64 [B], the row whose logits u are the unguided ones of a row: its own become
            u + (1 + w) (logits - u). A row that is its own partner stays as it is.
        self_conditioning: float32 [B,T,hidden], what the step before expected at each position,
            zeros where there was none; None in models without it.
        denoising: bool [B], which rows denoise, and do not read committed text; likewise.
    """

    def __init__(
        self,
        profile: Profile,
        shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        allocate: Allocate = _on_the_heap,
    ) -> None:
        batch, block, rows = profile.batch, profile.block, profile.rows
        context = profile.cache + block

        def extra(name: str, dtype: type[np.generic]) -> NDArray[Any] | None:
            return allocate(name, shapes[name], dtype) if name in shapes else None

        self.profile = profile
        self.input_ids: NDArray[np.int64] = allocate("input_ids", (batch, block), np.int64)
        self.position_ids: NDArray[np.int64] = allocate("position_ids", (batch, block), np.int64)
        self.attention_mask: NDArray[np.bool_] = allocate(
            "attention_mask", (batch, 1, block, context), np.bool_
        )
        self.head_rows: NDArray[np.int64] = allocate("head_rows", (batch, rows), np.int64)
        self.temperature: NDArray[np.float32] = allocate("temperature", (batch,), np.float32)
        self.uniform: NDArray[np.float32] = allocate("uniform", (batch, rows), np.float32)
        self.sliding_attention_mask: NDArray[np.bool_] | None = extra(SLIDING_MASK, np.bool_)
        self.adapter: NDArray[np.float32] | None = extra(ADAPTER, np.float32)
        self.guidance: NDArray[np.float32] | None = extra(GUIDANCE, np.float32)
        self.partner: NDArray[np.int64] | None = extra(PARTNER, np.int64)
        if self.partner is not None:
            self.partner[:] = np.arange(batch)
        self.self_conditioning: NDArray[np.float32] | None = extra(SELF_CONDITIONING, np.float32)
        self.denoising: NDArray[np.bool_] | None = extra(DENOISING, np.bool_)
        # Padding until a row is fed: every position sees itself, so that no softmax is empty.
        diagonal = np.arange(block)
        for mask in self.masks():
            mask[:, 0, diagonal, mask.shape[-1] - block + diagonal] = True
        # What each row was last filled for, None for padding: filling it again is skipped.
        self.filled_for: list[object] = [None] * batch

    def masks(self) -> list[NDArray[np.bool_]]:
        """Return the attention masks: one, or two where some layers see a window."""
        sliding = self.sliding_attention_mask
        return [self.attention_mask] if sliding is None else [self.attention_mask, sliding]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the buffers by graph input name."""
        found: dict[str, NDArray[np.generic] | None] = {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "attention_mask": self.attention_mask,
            SLIDING_MASK: self.sliding_attention_mask,
            ADAPTER: self.adapter,
            SELF_CONDITIONING: self.self_conditioning,
            DENOISING: self.denoising,
            "head_rows": self.head_rows,
            "temperature": self.temperature,
            "uniform": self.uniform,
            GUIDANCE: self.guidance,
            PARTNER: self.partner,
        }
        return {name: array for name, array in found.items() if array is not None}


@dataclass(frozen=True)
class Store:
    """Keep the first ``count`` positions that ``row`` feeds, at ``at`` in its cache.

    What the cache held from there on counts no longer. Without ``at`` they are appended. An engine
    refuses a store that does not fit, with `ValueError`.
    """

    row: int
    count: int
    at: int | None = None


def plan_dtype(spec: TensorSpec, cache_dtype: Precision) -> DataType:
    """Return the type that a graph input or output has in an engine's plan.

    Caches have the engine's own; everything else is as the manifest says.
    """
    cached = spec.name.startswith(("past_key_values.", "present."))
    return cache_dtype if cached else spec.dtype


def tensor_shape(
    spec: TensorSpec, profile: Profile, attention: Attention | None = None
) -> tuple[int, ...]:
    """Return the shape that a graph input or output has in a profile.

    ``attention`` tells how much layers keep that keep the last positions only.

    Raises:
        EngineError: a dimension has a name that no profile gives a size.
    """
    sizes = {
        "batch": profile.batch,
        "block": profile.block,
        "cache": profile.cache,
        "context": profile.cache + profile.block,
        "rows": profile.rows,
    }
    if attention is not None and attention.sliding_context is not None:
        last = min(profile.cache, attention.sliding_context)
        sizes |= {"last": last, "last_context": last + profile.block}
    unknown = [size for size in spec.shape if isinstance(size, str) and size not in sizes]
    if unknown:
        raise EngineError(
            f"the manifest gives {spec.name} the unknown dimension {unknown[0]!r}",
            "export it again",
        )
    return tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)


def input_shapes(manifest: Manifest, profile: Profile) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a graph's inputs in a profile, by name."""
    return {spec.name: tensor_shape(spec, profile, manifest.attention) for spec in manifest.inputs}


def head_outputs(manifest: Manifest) -> tuple[str, ...]:
    """Return the graph outputs that `Outputs` holds, in its order."""
    found = {spec.name for spec in manifest.outputs}
    return (*OUTPUTS, *(name for name in (NEXT_SELF_CONDITIONING,) if name in found))


class Engine(Protocol):
    """A built denoiser. It owns the memory that a device needs; the loop only fills buffers."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the bundle it was built from."""
        ...

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The shapes it was built for."""
        ...

    def cache(self, batch: int, size: int) -> Cache:
        """Allocate an empty cache for ``batch`` rows of ``size`` positions."""
        ...

    def inputs(self, profile: Profile) -> Inputs:
        """Allocate the input buffers of a profile."""
        ...

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        """Run the denoiser once, then write what ``stores`` names to the cache."""
        ...

    def close(self) -> None:
        """Release what the engine holds; calling it again does nothing."""
        ...
