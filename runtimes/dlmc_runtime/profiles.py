"""Choosing a fixed shape for the work at hand."""

from collections.abc import Sequence

from dlmc_runtime.errors import RequestError
from dlmc_runtime.manifest import Profile


def _cost(profile: Profile) -> tuple[int, int, int, int]:
    return (profile.batch, profile.block, profile.cache, profile.rows)


def _too_small(profiles: Sequence[Profile], block: int, rows: int) -> RequestError:
    return RequestError(
        f"no profile takes {block} positions with {rows} head rows"
        f" (built: {'; '.join(map(str, profiles))})",
        "ask for less, or build with larger profiles",
    )


class ProfileTable:
    """The profiles of one engine, asked for the cheapest that fits."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles = tuple(sorted(profiles, key=_cost))
        self.widest = max(profile.batch for profile in profiles)

    def room(self, count: int, cached: int, block: int, rows: int) -> tuple[int, int]:
        """Return the (batch, cache) that denoise ``count`` requests together.

        Args:
            count: how many requests; where none takes so many, the largest batch is returned.
            cached: most committed positions any of them will have.
            block: most positions any of them denoises in one forward.
            rows: most head rows any of them needs.

        Raises:
            RequestError: no profile takes even one of them.
        """
        long = [p for p in self.profiles if p.cache >= cached]
        if not long:
            most = max(p.cache for p in self.profiles)
            raise RequestError(
                f"prompt and answer need {cached} cached positions, the engine holds {most}",
                "shorten them, or build with a larger --cache",
            )
        fits = [p for p in long if p.block >= block and p.rows >= rows]
        if not fits:
            raise _too_small(long, block, rows)
        most = max(p.batch for p in fits)
        batch = min((p.batch for p in fits if p.batch >= count), default=most)
        return batch, min(p.cache for p in fits if p.batch == batch)

    def pool(self, cached: int, block: int, rows: int, most: int | None = None) -> tuple[int, int]:
        """Return the (batch, cache) in which requests of these needs share forwards.

        That is the smallest cache that fits, and the widest batch of at most ``most`` over it.

        Raises:
            RequestError: no profile takes even one of them.
        """
        self.room(1, cached, block, rows)
        fits = [
            p for p in self.profiles if p.cache >= cached and p.block >= block and p.rows >= rows
        ]
        cache = min(p.cache for p in fits)
        sizes = [p.batch for p in fits if p.cache == cache]
        return max((b for b in sizes if most is None or b <= most), default=min(sizes)), cache

    def smallest(self, batch: int, cache: int, block: int, rows: int) -> Profile:
        """Return the cheapest profile of (batch, cache) with this many positions and head rows.

        Raises:
            RequestError: none is large enough.
        """
        same = [p for p in self.profiles if (p.batch, p.cache) == (batch, cache)]
        for profile in same:
            if profile.block >= block and profile.rows >= rows:
                return profile
        raise _too_small(same, block, rows)

    def has(self, batch: int, cache: int, block: int, rows: int) -> bool:
        """Return whether `smallest` finds a profile."""
        return any(
            p.block >= block and p.rows >= rows
            for p in self.profiles
            if (p.batch, p.cache) == (batch, cache)
        )

    def chunk(self, batch: int, cache: int) -> int:
        """Return the most positions one forward of (batch, cache) can store."""
        return max(p.block for p in self.profiles if (p.batch, p.cache) == (batch, cache))

    def widths(self, batch: int, cache: int) -> tuple[int, ...]:
        """Return the batches up to ``batch`` that are built in the same shapes, smallest first."""

        def shapes(size: int) -> set[tuple[int, int]]:
            return {(p.block, p.rows) for p in self.profiles if (p.batch, p.cache) == (size, cache)}

        sizes = sorted({p.batch for p in self.profiles if p.batch <= batch})
        return tuple(size for size in sizes if shapes(size) == shapes(batch))
