"""When a row's text ends before its length is used up."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Ending:
    """Where a row ends: how many generated tokens belong to it, and its text if a string cut it."""

    tokens: int
    text: str | None = None


@dataclass(frozen=True)
class StopRule:
    """Stop ids end before themselves; stop strings end the text before themselves.

    Where a row ends depends on its tokens alone, not on how many became final at once.
    """

    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    decode: Decode | None = None

    def find(self, tokens: Sequence[int]) -> Ending | None:
        """Return where ``tokens``, final from the first on, end; None where they may go on."""
        by_id = next((i for i, token in enumerate(tokens) if token in self.ids), None)
        known = tokens if by_id is None else tokens[:by_id]
        by_string = self._find_string(known) if self.strings else None
        if by_string is not None:
            return by_string
        return None if by_id is None else Ending(by_id)

    def _find_string(self, tokens: Sequence[int]) -> Ending | None:
        """Return the end before the string that fewest tokens complete."""
        if self._before_string(tokens) is None:
            return None
        counts = range(len(tokens) + 1)
        count = bisect_left(counts, 1, key=lambda n: self._before_string(tokens[:n]) is not None)
        return Ending(count, self._before_string(tokens[:count]))

    def _before_string(self, tokens: Sequence[int]) -> str | None:
        """Return the text before the first stop string in ``tokens``, None where there is none."""
        if self.decode is None:
            return None
        text = self.decode(tokens)
        found = [position for s in self.strings if (position := text.find(s)) >= 0]
        return text[: min(found)] if found else None
