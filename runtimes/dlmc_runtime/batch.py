"""Rows that share forwards: who sits where, and how wide the next forward must be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dlmc_runtime.engines.base import Engine, Inputs
from dlmc_runtime.errors import EngineError, RequestError
from dlmc_runtime.manifest import Profile
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.row import Row


def room(table: ProfileTable, rows: Sequence[Row]) -> tuple[int, int]:
    """Return the (batch, cache) for ``rows``; a smaller batch where they do not fit into one.

    Raises:
        RequestError: one of the rows fits no profile.
    """
    return table.room(
        sum(row.slots for row in rows),
        cached=max(row.regime.cache_needed for row in rows),
        block=max(row.regime.block_needed for row in rows),
        rows=max(row.regime.head_needed for row in rows),
    )


def as_many_as_fit(table: ProfileTable, rows: Sequence[Row]) -> int:
    """Return how many of the first ``rows`` can share a batch; one at least, which must fit."""
    count = 1
    while count < len(rows):
        group = rows[: count + 1]
        try:
            size, _ = room(table, group)
        except RequestError:  # each fits a profile, but none fits all of them
            break
        if sum(row.slots for row in group) > size:
            break
        count += 1
    return count


def check_slots(row: Row, size: int) -> None:
    """Refuse a row that takes more slots than a batch of ``size`` has.

    Raises:
        RequestError: it does.
    """
    if row.slots > size:
        raise RequestError(
            f"guidance takes {row.slots} rows of a batch, the engine has {size}",
            "build with --batch 2",
        )


class Batch:
    """Rows that share forwards. Each keeps its own position, length, sampler and phase.

    Rows join and leave between forwards. Where an engine was built in the same shapes for fewer
    rows, forwards are as narrow as the rows that still need them allow, over the front of the same
    cache.

    Args:
        engine: runs the denoiser.
        size: how many slots there are; a guided row takes two.
        context: positions that the cache of each holds.

    Attributes:
        rows: those that have joined, in that order.
        places: by row, the first of its slots.
        seconds: time that forwards have spent in the engine.

    Raises:
        EngineError: there is no memory for the cache.
    """

    def __init__(self, engine: Engine, size: int, context: int) -> None:
        self.engine, self.size, self.context = engine, size, context
        self.table = ProfileTable(engine.profiles)
        self.rows: list[Row] = []
        self.places: list[int] = []
        with _memory(f"the cache of {size} rows of {context} positions"):
            self.cache = engine.cache(size, context)
        self.chunk = self.table.chunk(size, context)
        self.widths = self.table.widths(size, context)
        self.seconds = 0.0
        self.fed_wide = False  # whether the last forward was of rows that feed much
        self._spoiled: set[int] = set()  # slots that hold what may be no number
        self._inputs: dict[Profile, Inputs] = {}

    @classmethod
    def of(cls, engine: Engine, rows: Sequence[Row]) -> "Batch":
        """Return a batch of ``rows``, as wide as the engine has one for them.

        Raises:
            RequestError: one of the rows fits no profile of the engine.
            EngineError: there is no memory for the profile's cache.
        """
        size, context = room(ProfileTable(engine.profiles), rows)
        if sum(row.slots for row in rows) > size:
            raise ValueError(f"{len(rows)} rows in a batch of {size}")
        batch = cls(engine, size, context)
        for row in rows:
            batch.join(row)
        return batch

    def inputs(self, profile: Profile) -> Inputs:
        """Return the profile's input buffers, allocated at first use."""
        if profile not in self._inputs:
            with _memory(f"the inputs of {profile}"):
                self._inputs[profile] = self.engine.inputs(profile)
        return self._inputs[profile]

    @property
    def active(self) -> list[int]:
        """Indices of rows that still need forwards."""
        return [index for index, row in enumerate(self.rows) if not row.finished]

    def _free(self, count: int, width: int) -> int | None:
        """Return the first of ``count`` neighbouring slots below ``width`` that nobody needs."""
        taken = {
            self.places[index] + offset
            for index in self.active
            for offset in range(self.rows[index].slots)
        }
        starts = range(width - count + 1)
        return next((s for s in starts if taken.isdisjoint(range(s, s + count))), None)

    def has_room(self, row: Row) -> bool:
        """Return whether slots for ``row`` are free, and a shape for it and the others."""
        taken = sum(self.rows[index].slots for index in self.active)
        return taken + row.slots <= self.size and self._suits(row)

    def _suits(self, row: Row) -> bool:
        """Return whether forwards that ``row`` shares with the others have a shape.

        Each alone has one, but one may need many positions, and another many head rows.
        """
        regimes = [self.rows[index].regime for index in self.active] + [row.regime]
        block = max(regime.block_needed for regime in regimes)
        rows = max(regime.head_needed for regime in regimes)
        return self.table.has(self.size, self.context, block, rows)

    def join(self, row: Row) -> int:
        """Give a row its slots, the first that are free; return the first of them.

        Where two are free, but not side by side, others move for a pair.

        Raises:
            ValueError: none are free.
            EngineError: what an earlier row has left there cannot be cleared.
        """
        place = self._free(row.slots, self.size)
        if place is None and self.has_room(row):
            place = self._pack()
        if place is None:
            raise ValueError(f"no room for {row.slots} more in a batch of {self.size}")
        for slot in self._spoiled & set(range(place, place + row.slots)):
            self.cache.clear(slot)
            self._spoiled.discard(slot)
        self.rows.append(row)
        self.places.append(place)
        return place

    def leave(self, row: Row, *, spoiled: bool = False) -> None:
        """Take a row out; where ``spoiled`` its slots are cleared before others use them.

        What a mask hides is multiplied by nothing, and a NaN times nothing is a NaN.
        """
        index = next(i for i, one in enumerate(self.rows) if one is row)
        if spoiled:
            self._spoiled.update(range(self.places[index], self.places[index] + row.slots))
        del self.rows[index], self.places[index]

    def narrow(self) -> int:
        """Move rows to the front where that makes the next forward narrower; return its width."""
        active = self.active
        needed = sum(self.rows[index].slots for index in active)
        width = next(width for width in self.widths if width >= needed)
        for index in active:
            row, place = self.rows[index], self.places[index]
            if place + row.slots <= width:
                continue
            free = self._free(row.slots, width)
            if free is None:  # two slots are free, but not side by side
                self._pack()
                break
            self._move(index, free)
        return width

    def _pack(self) -> int:
        """Move all rows to the front, in the order of their places; return where they end."""
        end = 0
        for index in sorted(self.active, key=self.places.__getitem__):
            if self.places[index] != end:
                self._move(index, end)
            end += self.rows[index].slots
        return end

    def _move(self, index: int, place: int) -> None:
        """Move a row forward, to slots that are free or its own."""
        for offset in range(self.rows[index].slots):
            self.cache.move(self.places[index] + offset, place + offset)
            self._spoiled.discard(place + offset)
        self.places[index] = place

    def fill(self, indices: Sequence[int]) -> tuple[Sequence[int], int]:
        """Return which of these rows to feed together, in their order, and in which width.

        It is all of them where they need at least half of a width, else as many as fill a narrower
        one: a long prompt would cost as much as a batch of them. They are brought to the front for
        it, and those that were there take their places.
        """
        if any(self.rows[index].slots > 1 for index in self.active):  # pairs stay side by side
            return indices, self.narrow()
        count = len(indices)
        width = next(width for width in self.widths if width >= count)
        if 2 * count < width:
            width = max((narrow for narrow in self.widths if narrow <= count), default=width)
        chosen = indices[:width]
        kept = {self.places[index] for index in chosen}
        free = [slot for slot in range(width) if slot not in kept]
        try:
            for index in chosen:
                if self.places[index] >= width:
                    self._exchange(index, free.pop(0))
        except MemoryError:  # of the device, for what the two of them hold
            return indices, self.narrow()
        return chosen, width

    def _exchange(self, index: int, slot: int) -> None:
        """Move a row into a slot, and whoever sits there into its own."""
        place = self.places[index]
        saved = []
        if self.rows[index].cached:
            saved = [self.cache.save(place, 0, int(self.cache.filled[place]))]
        for other in self.active:
            if self.places[other] == slot:
                self.cache.move(slot, place)
                self.places[other] = place
        if slot in self._spoiled:
            self.cache.clear(slot)
            self._spoiled.discard(slot)
        self.cache.load(slot, saved)
        self.places[index] = slot


@contextmanager
def _memory(what: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, ValueError) as error:  # numpy's words for too much, and for far too much
        raise EngineError(
            f"there is no memory for {what}", "build with a smaller --batch, --cache or --prefill"
        ) from error
