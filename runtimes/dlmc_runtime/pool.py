"""Rows of one cache size: they join, share forwards, and leave, each as if it were alone."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch
from dlmc_runtime.errors import DlmcError, EngineError
from dlmc_runtime.events import Denoised, Failed, Finished
from dlmc_runtime.prefixes import PrefixStore, Trail
from dlmc_runtime.reader import Reader
from dlmc_runtime.statistics import Counts
from dlmc_runtime.text import TextCodec
from dlmc_runtime.ticket import Ticket

_log = logging.getLogger(__name__)


@dataclass
class Seat:
    """A row in a batch, and who waits for it."""

    ticket: Ticket
    reader: Reader
    trail: Trail
    began: float


class Pool:
    """A batch whose rows come and go.

    Args:
        batch: where they sit; empty.
        text: the bundle's tokenizer, where it has one.
        prefixes: what rows have in common.
        counts: takes note of what happens.
    """

    def __init__(
        self, batch: Batch, text: TextCodec | None, prefixes: PrefixStore, counts: Counts
    ) -> None:
        self.batch, self.text = batch, text
        self._prefixes, self._counts = prefixes, counts
        self.seats: dict[int, Seat] = {}

    def join(self, ticket: Ticket) -> None:
        """Let a row take part from the next forward on; there must be room for it.

        Raises:
            EngineError: its part of the cache cannot be written to.
        """
        row = ticket.row
        place = self.batch.join(row)
        try:
            trail = self._prefixes.load(row, self.batch.cache, place)
        except BaseException:
            self.batch.leave(row, spoiled=True)
            raise
        ticket.admitted = time.monotonic()
        reader = Reader(row, self.text, 0)
        self.seats[row.number] = Seat(ticket, reader, trail, ticket.admitted)

    def drop(self, gone: Callable[[Ticket], bool]) -> list[Ticket]:
        """Take out the rows of tickets that are gone."""
        left = [seat.ticket for seat in self.seats.values() if gone(seat.ticket)]
        for ticket in left:
            self._leave(ticket)
        return left

    def turn(self) -> bool:
        """Run one forward for all rows; return whether the engine did.

        What goes wrong with one row ends that row, and what goes wrong with the forward ends the
        rows that shared it.
        """
        batch, before = self.batch, self.batch.seconds
        taking_part = batch.active
        try:
            turn = decode.plan(batch)
            taking_part = [*turn.tasks]
            outputs = decode.forward(batch, turn)
        except Exception as error:  # noqa: BLE001  (whatever an engine raises ends no other row)
            for seat in [self.seats[batch.rows[index].number] for index in taking_part]:
                self._fail(seat, error)
            return False
        finally:
            self._counts.forward_seconds += batch.seconds - before
        self._count(turn)
        broken: list[tuple[Seat, Exception]] = []
        seats = [self.seats[batch.rows[index].number] for index in turn.tasks]
        for seat, index in zip(seats, turn.tasks, strict=True):
            try:
                event = decode.apply(batch, turn, outputs, index)
                self._advance(seat, batch.places[index], event)
            except Exception as error:  # noqa: BLE001  (likewise)
                broken.append((seat, error))
        for seat, problem in broken:
            self._fail(seat, problem)
        for seat in seats:
            if seat.reader.done and seat.ticket.row.number in self.seats:
                self._leave(seat.ticket)
        return True

    def _advance(self, seat: Seat, place: int, denoised: Denoised | None) -> None:
        """Report what a forward has changed of a row, and keep what it has committed."""
        if denoised is not None:
            seat.ticket.tell(replace(denoised, row=0))
        self._prefixes.save(seat.ticket.row, self.batch.cache, place, seat.trail)
        for event in seat.reader.advance(time.monotonic() - seat.began):
            if isinstance(event, Finished):
                self._counts.finish(event.result)
            seat.ticket.tell(event)

    def _fail(self, seat: Seat, error: Exception) -> None:
        """End a row with an error, and leave nothing of it in the cache."""
        self._leave(seat.ticket, spoiled=True)
        told = error
        if not isinstance(told, DlmcError):
            _log.error("a request failed", exc_info=error)
            told = EngineError(
                f"the request failed inside the engine ({type(error).__name__})", "try it again"
            )
        self._counts.failed[type(told).__name__] += 1
        seat.ticket.tell(Failed(0, told))

    def _leave(self, ticket: Ticket, *, spoiled: bool = False) -> None:
        del self.seats[ticket.row.number]
        self.batch.leave(ticket.row, spoiled=spoiled)

    def _count(self, turn: decode.Turn) -> None:
        kinds = sorted({task.kind for task in turn.tasks.values()})
        self._counts.forwards["+".join(kinds)] += 1
        self._counts.rows_fed += sum(self.batch.rows[index].slots for index in turn.tasks)
        self._counts.slots_fed += turn.profile.batch
