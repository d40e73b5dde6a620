"""Answers that are nothing but a call, without any marker around it."""

from collections.abc import Callable, Collection, Sequence

from dlmc_runtime.serve.parsers.deltas import Call, Content, Delta

_OPENINGS = ("{", "[")


class Bare:
    """Holds content that may be a call until all of it is there.

    Args:
        read: returns the calls that a text is, None where it is something else.
        names: the functions that may be called.
    """

    def __init__(self, read: Callable[[str], list[Call] | None], names: Collection[str]) -> None:
        self._read, self._names = read, names
        self._text = ""
        self._open = True

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Take the next deltas; return those that are no part of what may be a call."""
        found: list[Delta] = []
        for delta in deltas:
            if not self._open or not isinstance(delta, Content):
                found.append(delta)
                continue
            self._text += delta.text
            if self._text.lstrip() and not self._text.lstrip().startswith(_OPENINGS):
                self._open = False
                found.append(Content(self._text))
        return found

    def end(self) -> list[Delta]:
        """Return the calls, or the text that was held."""
        if not self._open:
            return []
        self._open = False
        calls = self._read(self._text)
        if calls is None or any(call.name not in self._names for call in calls):
            return [Content(self._text)]
        return list(calls)
