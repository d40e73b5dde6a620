"""A request in a scheduler's hands, as the one who submitted it sees it."""

import logging
import threading
import time
from collections.abc import Callable

from dlmc_runtime.errors import DlmcError, RequestError
from dlmc_runtime.events import Committed, Event, Failed, Finished, Result
from dlmc_runtime.row import Row

Listener = Callable[[Event], None]

_log = logging.getLogger(__name__)


class Ticket:
    """What became of a request so far.

    Attributes:
        submitted, admitted, first_block, ended: when, by `time.monotonic`; None where it has not
            happened.
        deadline: when it must have ended; None for no limit.
        cancelled: whether nobody waits for it any more.
        home: the (batch, cache) that its row belongs to.
    """

    def __init__(
        self,
        row: Row,
        home: tuple[int, int],
        listener: Listener,
        wake: Callable[[], None],
        seconds: float | None,
    ) -> None:
        self.row, self.home = row, home
        self._listener, self._wake = listener, wake
        self.submitted = time.monotonic()
        self.admitted: float | None = None
        self.first_block: float | None = None
        self.ended: float | None = None
        self.deadline = None if seconds is None else self.submitted + seconds
        self.cancelled = False
        self._outcome: Result | DlmcError | None = None
        self._telling = threading.Lock()  # who closes a scheduler may tell as well as its thread
        self._over = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it has ended, by a result, an error or a cancellation."""
        return self._over.is_set()

    def cancel(self) -> None:
        """Leave before the next forward; nothing is reported after that."""
        self.cancelled = True
        self._wake()

    def result(self, seconds: float | None = None) -> Result:
        """Wait for the result.

        Raises:
            DlmcError: the request failed, or was cancelled.
            TimeoutError: it did not end in ``seconds``.
        """
        if not self._over.wait(seconds):
            raise TimeoutError(f"the request did not end in {seconds} s")
        if isinstance(self._outcome, Result):
            return self._outcome
        raise self._outcome or RequestError("the request was cancelled", "submit it again")

    def tell(self, event: Event) -> None:
        """Report an event; the scheduler's business. Once it has ended, nothing is reported.

        A listener that raises has a defect of its own: it is told no more, and its row leaves as
        if it were cancelled.
        """
        with self._telling:
            if not self.done:
                self._tell(event)

    def _tell(self, event: Event) -> None:
        if isinstance(event, Committed) and self.first_block is None:
            self.first_block = time.monotonic()
        if isinstance(event, Finished):
            self._outcome = event.result
        elif isinstance(event, Failed):
            self._outcome = event.error
        if isinstance(event, Finished | Failed):  # who hears of it finds the result there
            self.close()
        if not self.cancelled:
            try:
                self._listener(event)
            except Exception:  # noqa: BLE001  (whoever listens ends no other row)
                _log.exception("a listener failed, its request is cancelled")
                self.cancelled = True

    def close(self) -> None:
        """Take note that it has ended; the scheduler's business."""
        self.ended = time.monotonic()
        self._over.set()
