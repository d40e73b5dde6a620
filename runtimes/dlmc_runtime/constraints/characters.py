"""Sets of Unicode characters as ranges of code points."""

from collections.abc import Iterable
from dataclasses import dataclass

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)  # no characters: UTF-8 has no bytes for them

Range = tuple[int, int]


@dataclass(frozen=True)
class Characters:
    """A set of characters: code points from the first to the last of each range, in order."""

    ranges: tuple[Range, ...]

    @classmethod
    def of(cls, *parts: str | Range) -> "Characters":
        """Return the set of all characters in some texts and ranges."""
        found: list[Range] = []
        for part in parts:
            found += [(ord(c), ord(c)) for c in part] if isinstance(part, str) else [part]
        return cls(_merged(found)) & EVERY

    def __or__(self, other: "Characters") -> "Characters":
        return Characters(_merged((*self.ranges, *other.ranges)))

    def __and__(self, other: "Characters") -> "Characters":
        both = (
            (max(low, lowest), min(high, highest))
            for low, high in self.ranges
            for lowest, highest in other.ranges
        )
        return Characters(_merged(pair for pair in both if pair[0] <= pair[1]))

    def __sub__(self, other: "Characters") -> "Characters":
        return self & Characters(_gaps(other.ranges))

    def __contains__(self, character: str) -> bool:
        return any(low <= ord(character) <= high for low, high in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def pattern(self) -> str:
        """Return a class in the syntax of Rust's regex, which matches one of them."""
        if not self.ranges:
            return NOTHING
        inner = "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in self.ranges)
        return f"[{inner}]"


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _gaps(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """Return what lies between ranges that are in order and apart."""
    edges = [-1, *(edge for low, high in ranges for edge in (low, high)), _LAST + 1]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((low + 1, high - 1) for low, high in pairs if low + 1 <= high - 1)


NOTHING = r"[a&&b]"
"""A pattern that matches nothing."""

EVERY = Characters(_gaps((_SURROGATES,)))
ASCII = Characters(((0x20, 0x7E),))
DIGITS = Characters.of("0123456789")
WORDS = Characters.of((ord("a"), ord("z")), (ord("A"), ord("Z")), "_") | DIGITS
SPACES = Characters.of(" \t\n\r\f\v")
LINE_ENDS = Characters.of("\n\r\u2028\u2029\u0085")
