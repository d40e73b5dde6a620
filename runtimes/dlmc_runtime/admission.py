"""Who waits, and who is next: a bounded queue that is fair to those who share it."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from dlmc_runtime.errors import OverloadError

Waiting = TypeVar("Waiting")


class Admission(Generic[Waiting]):
    """First come, first served within a client; clients take turns.

    Args:
        limit: how many may wait in all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lines: OrderedDict[str, deque[Waiting]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Waiting]:
        return (one for line in self._lines.values() for one in line)

    def add(self, client: str, one: Waiting, retry_after: float) -> None:
        """Put somebody at the end of a client's line.

        Raises:
            OverloadError: as many wait already as may.
        """
        if len(self) >= self.limit:
            problem = f"{self.limit} requests are waiting already"
            raise OverloadError(problem, "try again later", retry_after)
        self._lines.setdefault(client, deque()).append(one)

    def next(self, fits: Callable[[Waiting], bool]) -> Waiting | None:
        """Take out the first whose turn it is and that fits; the client goes to the back.

        ``fits`` is asked about the head of each line alone: nobody overtakes within a client.
        """
        for client, line in self._lines.items():
            if fits(line[0]):
                one = line.popleft()
                self._lines.move_to_end(client)
                if not line:
                    del self._lines[client]
                return one
        return None

    def remove(self, gone: Callable[[Waiting], bool]) -> list[Waiting]:
        """Take out everybody that is gone."""
        left: list[Waiting] = []
        for client, line in [*self._lines.items()]:
            fates = [(one, gone(one)) for one in line]  # asked once: the answer may change
            stay = deque(one for one, leaves in fates if not leaves)
            left += [one for one, leaves in fates if leaves]
            if stay:
                self._lines[client] = stay
            else:
                del self._lines[client]
        return left
