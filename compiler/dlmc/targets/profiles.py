"""Which fixed shapes to build: from the manifest, or from a request that overrides it."""

from collections.abc import Iterable
from dataclasses import dataclass

from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Manifest, Profile

_LARGEST_BATCH = 1024

NARROW = 32
"""Positions fed at once where a model that denoises the whole answer does so in blocks."""


@dataclass(frozen=True)
class ProfileRequest:
    """What the command line may say about shapes; None keeps the bundle's own.

    Attributes:
        batch: batch sizes, one set of profiles each.
        block: positions of a denoising forward.
        cache: committed positions; families that see the whole sequence keep all of them, or 0
            for no approximate cache.
        prefill: positions of a prefill forward; such families have none. 0 lets prompts go through
            the forward that denoises.
        rows: rows that go through the head in a denoising forward.
    """

    batch: tuple[int, ...] | None = None
    block: int | None = None
    cache: int | None = None
    prefill: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes below 1 (a cache may be empty)."""
        sizes = {"block": self.block, "rows": self.rows}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise UsageError(f"--{name} is {value}", "it must be at least 1")
        for name, value in {"cache": self.cache, "prefill": self.prefill}.items():
            if value is not None and value < 0:
                raise UsageError(f"--{name} is {value}", "it must be at least 0")
        for value in self.batch or ():
            if not 1 <= value <= _LARGEST_BATCH:
                raise UsageError(f"--batch holds {value}", f"use 1 to {_LARGEST_BATCH}")
        if self.batch == ():
            raise UsageError("--batch is empty", "give sizes like 1,4")


def choose(manifest: Manifest, request: ProfileRequest) -> tuple[Profile, ...]:
    """Return the profiles to build, cheapest first, without repetition.

    Raises:
        UsageError: the request contradicts the family or itself.
    """
    together = manifest.attention.routing_block
    if request == ProfileRequest():
        check_routing(manifest.profiles, together)
        return manifest.profiles
    longest = manifest.model.max_position_embeddings
    for name in ("block", "cache", "prefill"):
        value = getattr(request, name)
        if value is not None and value > longest:
            raise UsageError(f"--{name} is {value}", f"the model has only {longest} positions")
    regime = manifest.attention.regime
    choose_for = _whole_sequence if regime == "full" else _cached
    batches = request.batch or tuple(profile.batch for profile in manifest.profiles)
    found = {p for batch in sorted(set(batches)) for p in choose_for(manifest, request, batch)}
    check_routing(found, together)
    return tuple(sorted(found, key=lambda p: (p.batch, p.block, p.cache, p.rows)))


def check_routing(profiles: Iterable[Profile], together: int | None) -> None:
    """Refuse profiles that feed a part of a block whose tokens choose their experts together.

    Args:
        profiles: to be built.
        together: how many tokens do; None where each chooses alone.

    Raises:
        UsageError: a profile's block is no multiple of them.
    """
    for profile in profiles:
        if together and profile.block % together:
            raise UsageError(
                f"a profile has {profile.block} positions, but {together} consecutive tokens"
                " choose their experts together",
                f"give a multiple of {together}",
            )


def _whole_sequence(manifest: Manifest, request: ProfileRequest, batch: int) -> list[Profile]:
    """Families that see the whole sequence: a forward over it, and two or three over a cache."""
    if request.prefill:
        raise UsageError(
            f"--prefill makes no sense for {manifest.family}, which sees the whole sequence",
            "give the longest sequence as --block",
        )
    block = request.block or max(profile.block for profile in manifest.profiles)
    own = max(profile.cache for profile in manifest.profiles)
    cache = request.cache if request.cache is not None else block if own else 0
    if 0 < cache < block:
        raise UsageError(
            f"--cache is {cache}", f"it must hold the whole sequence, --block {block}, or be 0"
        )
    rows = request.rows or min(manifest.attention.block_length, block)
    return whole_sequence(batch, block, cache, _at_most(rows, block))


def whole_sequence(batch: int, block: int, cache: int, rows: int) -> list[Profile]:
    """Return the profiles of a model that sees the whole sequence.

    Over a cache there is one for the forward that renews it, one for a block alone, and one for a
    block with about half of the sequence after it.
    """
    narrow = min(rows, NARROW)
    fed = sorted({narrow, max(block // 2, narrow), block}) if cache else []
    return [
        Profile(batch=batch, block=block, cache=0, rows=rows),
        *(Profile(batch=batch, block=n, cache=cache, rows=min(rows, n)) for n in fed),
    ]


def _cached(manifest: Manifest, request: ProfileRequest, batch: int) -> list[Profile]:
    """Families with an exact cache: one profile to denoise and commit, and one to prefill."""
    length = manifest.attention.block_length
    block = request.block or max(length, min(p.block for p in manifest.profiles))
    if block < length:
        raise UsageError(f"--block is {block}", f"the model denoises {length} positions together")
    own_cache = max(profile.cache for profile in manifest.profiles)
    cache = own_cache if request.cache is None else request.cache
    if not cache and manifest.attention.regime == "context":
        raise UsageError("--cache is 0", "it must hold a prompt")
    prefill = request.prefill
    if prefill is None:
        prefill = max(profile.block for profile in manifest.profiles)
    if 0 < prefill < length:
        raise UsageError(f"--prefill is {prefill}", f"it must hold a block of {length}")
    rows = _at_most(request.rows or block, block)
    if rows < length:
        raise UsageError(f"--rows is {rows}", f"the model denoises {length} positions together")
    denoising = Profile(batch=batch, block=block, cache=cache, rows=rows)
    if not prefill:
        return [denoising]
    return [denoising, Profile(batch=batch, block=prefill, cache=cache, rows=1)]


def _at_most(rows: int, block: int) -> int:
    if rows > block:
        raise UsageError(f"--rows is {rows}", f"a forward has only {block} positions")
    return rows
