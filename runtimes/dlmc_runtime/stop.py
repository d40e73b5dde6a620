"""When a row's text ends before its length is used up."""

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
    """Stop ids end before themselves; stop strings end the text before themselves."""

    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()
    decode: Decode | None = None

    def find(self, tokens: Sequence[int]) -> Ending | None:
        """Return where ``tokens``, final from the first on, end; None where they may go on."""
        by_id = next((i for i, token in enumerate(tokens) if token in self.ids), None)
        known = tokens if by_id is None else tokens[:by_id]
        by_string = self._find_string(known)
        if by_string is not None:
            return by_string
        return None if by_id is None else Ending(by_id)

    def _find_string(self, tokens: Sequence[int]) -> Ending | None:
        if not self.strings or self.decode is None:
            return None
        text = self.decode(tokens)
        found = [position for s in self.strings if (position := text.find(s)) >= 0]
        if not found:
            return None
        enough = next(
            count
            for count in range(len(tokens) + 1)
            if any(s in self.decode(tokens[:count]) for s in self.strings)
        )
        return Ending(enough, text[: min(found)])
