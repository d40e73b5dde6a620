"""Choosing a fixed shape for the work at hand."""

from collections.abc import Sequence

from dlmc_runtime.errors import RequestError
from dlmc_runtime.manifest import Profile


def _cost(profile: Profile) -> tuple[int, int, int, int]:
    return (profile.batch, profile.block, profile.cache, profile.rows)


class ProfileTable:
    """The profiles of one engine, asked for the cheapest that fits."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles = tuple(sorted(profiles, key=_cost))
        self.widest = max(profile.batch for profile in profiles)

    def room(self, rows: int, cached: int) -> tuple[int, int]:
        """Return the (batch, cache) that hold ``rows`` rows of ``cached`` committed positions.

        Raises:
            RequestError: no profile caches that many positions.
        """
        fits = [p for p in self.profiles if p.cache >= cached]
        if not fits:
            most = max(p.cache for p in self.profiles)
            raise RequestError(
                f"prompt and answer need {cached} cached positions, the engine holds {most}",
                "shorten them, or build with a larger --cache",
            )
        batches = sorted({p.batch for p in fits})
        batch = next((b for b in batches if b >= rows), batches[-1])
        return batch, min(p.cache for p in fits if p.batch == batch)

    def smallest(self, batch: int, cache: int, block: int, rows: int) -> Profile:
        """Return the cheapest profile of (batch, cache) with this many positions and head rows.

        Raises:
            RequestError: none is large enough.
        """
        same = [p for p in self.profiles if (p.batch, p.cache) == (batch, cache)]
        for profile in same:
            if profile.block >= block and profile.rows >= rows:
                return profile
        shapes = "; ".join(map(str, same))
        raise RequestError(
            f"no profile takes {block} positions with {rows} head rows (built: {shapes})",
            "ask for less, or build with larger profiles",
        )

    def chunk(self, batch: int, cache: int) -> int:
        """Return the most positions one forward of (batch, cache) can store."""
        return max(p.block for p in self.profiles if (p.batch, p.cache) == (batch, cache))
