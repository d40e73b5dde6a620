"""Finding markers in a text that arrives in pieces, cut anywhere."""

import re
from collections.abc import Collection


class Markers:
    """Texts to look for: the first one that comes, and of those that begin there the longest.

    Args:
        texts: what to look for; none of them is empty.
    """

    def __init__(self, texts: Collection[str]) -> None:
        longest_first = sorted(texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if texts else None
        self._prefixes = {text[:count] for text in texts for count in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)

    def find(self, text: str, *, last: bool) -> tuple[int, str | None]:
        """Return up to where ``text`` is free of markers, and the marker that begins there.

        There is none where more of the text must be known first: its end may be the beginning of
        a marker. What is found does not depend on where a text is cut.

        Args:
            text: what has come so far.
            last: whether nothing else will come.
        """
        waits = len(text) if last else self._waits(text)
        found = self._pattern.search(text) if self._pattern is not None else None
        if found is not None and (last or found.start() < waits):
            return found.start(), found.group()
        return waits, None

    def _waits(self, text: str) -> int:
        """Return the first position from which on all of the text is the beginning of a marker."""
        begin = max(len(text) - self._longest + 1, 0)
        ends = (at for at in range(begin, len(text)) if text[at:] in self._prefixes)
        return next(ends, len(text))
