"""Few letters in place of all of Unicode, and back to the bytes of UTF-8.

What makes an automaton takes its time for every letter in every state, and a class of characters
beyond ASCII is a dozen states of bytes wherever it occurs, which an expression of JSON strings does
at every turn. Characters that no class of an expression tells apart are therefore one letter while
its automaton is made, and become bytes in the finished one.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.errors import RequestError

Table = NDArray[np.int32]

ASCII = 128
_LAST = 0x10FFFF
_MOST = 0x7FF - ASCII  # letters of two bytes, but for the one that begins every text
_WRITTEN = re.compile(r"\\x\{([0-9A-F]+)\}(?:-\\x\{([0-9A-F]+)\})?")
# Leading bytes: the first, how many, how many bytes follow, the first code point they may spell.
_LEADS = ((0xC2, 30, 1, 0x80), (0xE0, 16, 2, 0x800), (0xF0, 5, 3, 0x10000))

Piece = tuple[int, int, int]


@dataclass(frozen=True)
class Alphabet:
    """The letters of an expression: ASCII, and one for each range of characters beyond it.

    Attributes:
        starts: the first code point of each range beyond ASCII; the next one's is where it ends.
        alike: for each character of ASCII the first one that the expression does not tell from it.
    """

    starts: tuple[int, ...]
    alike: tuple[int, ...]

    @classmethod
    def of(cls, pattern: str) -> "Alphabet":
        """Return the letters of an expression whose characters beyond ASCII are written as code.

        Raises:
            RequestError: they are too many.
        """
        edges = {0, ASCII}
        for low, high in _WRITTEN.findall(pattern):
            edges |= {int(low, 16), int(high or low, 16) + 1}
        for one in set(pattern):  # whatever it is there for
            edges |= {ord(one), ord(one) + 1}
        starts = tuple(sorted(edge for edge in edges if ASCII <= edge <= _LAST))
        if len(starts) > _MOST:
            raise RequestError(
                "the constraint tells too many characters beyond ASCII apart",
                "use fewer different ones",
            )
        within = sorted(edge for edge in edges if edge < ASCII)
        alike = tuple(within[bisect_right(within, code) - 1] for code in range(ASCII))
        return cls(starts, alike)

    @property
    def size(self) -> int:
        """How many letters there are."""
        return ASCII + len(self.starts)

    @property
    def spelled(self) -> bytes:
        """Every byte that a letter is written with, but one for those that are alike."""
        beyond = "".join(map(chr, range(ASCII, self.size + 1))).encode()
        return bytes(sorted({*self.alike, *beyond}))

    @property
    def sentinel(self) -> str:
        """One more letter, which occurs in no text."""
        return chr(self.size)

    def letter(self, code: int) -> int:
        """Return the letter of a character."""
        return code if code < ASCII else ASCII + bisect_right(self.starts, code) - 1

    def rewrite(self, pattern: str) -> str:
        """Return the expression in letters. Ranges stay ranges: letters are in order."""

        def shorter(found: re.Match[str]) -> str:
            low, high = found.group(1), found.group(2)
            first, last = (self.letter(int(one, 16)) for one in (low, high or low))
            return rf"\x{{{first:X}}}" + (rf"-\x{{{last:X}}}" if high else "")

        return _WRITTEN.sub(shorter, pattern)

    def read(self, table: Table) -> Table:
        """Return the next state for each letter, int32 [S,size], of an automaton of their bytes."""
        letters = [chr(letter).encode() for letter in (*self.alike, *range(ASCII, self.size))]
        found = np.empty((len(table), self.size), np.int32)
        for letter, spelled in enumerate(letters):
            state = table[:, spelled[0]]
            found[:, letter] = table[state, spelled[1]] if len(spelled) > 1 else state
        return found

    def spell(self, table: Table) -> Table:
        """Return the automaton of bytes, int32 [S',256], of one of letters, int32 [S+1,size].

        States keep their numbers but for the dead one, which is the last of both.
        """
        return _Speller(self, table).spelled()


class _Speller:
    """Adds the states between the bytes of a character."""

    def __init__(self, alphabet: Alphabet, table: Table) -> None:
        self.alphabet, self.table = alphabet, table
        self.dead = len(table) - 1
        self.inner: list[list[int]] = []
        self.known: dict[tuple[int, tuple[Piece, ...]], int] = {}
        self.leads: dict[tuple[Piece, ...], list[int]] = {}

    def spelled(self) -> Table:
        """Return the whole automaton."""
        bytes_of = np.full((self.dead, 256), self.dead, np.int64)
        bytes_of[:, :ASCII] = self.table[:-1, :ASCII]
        for state, targets in enumerate(self.table[:-1, ASCII:].tolist()):
            pieces = self.pieces(targets)
            if pieces:
                bytes_of[state, 0xC2:0xF5] = self.leading(pieces)
        rows = np.array(self.inner, np.int64).reshape(-1, 256)
        whole = np.concatenate((bytes_of, rows, np.full((1, 256), self.dead)))
        # States in between are numbered from -1 down until it is known where they begin.
        last = len(whole) - 1
        whole = np.where(
            whole < 0, self.dead - 1 - whole, np.where(whole == self.dead, last, whole)
        )
        return whole.astype(np.int32)

    def pieces(self, targets: list[int]) -> tuple[Piece, ...]:
        """Return the ranges of characters that lead on: first, last and state."""
        ends = [*self.alphabet.starts[1:], _LAST + 1]
        found: list[Piece] = []
        for first, end, state in zip(self.alphabet.starts, ends, targets, strict=True):
            if state == self.dead:
                continue
            joins = bool(found) and found[-1][1] == first - 1 and found[-1][2] == state
            found.append((found.pop()[0] if joins else first, end - 1, state))
        return tuple(found)

    def leading(self, pieces: tuple[Piece, ...]) -> list[int]:
        """Return the state behind each leading byte."""
        if pieces not in self.leads:
            found: list[int] = []
            for byte, count, follow, least in _LEADS:
                size = 64**follow
                spelt = _within(pieces, least, _LAST)
                base = (byte & (0x3F >> follow)) * size
                found += [
                    self.behind(_within(spelt, low, low + size - 1), follow)
                    for low in range(base, base + count * size, size)
                ]
            self.leads[pieces] = found
        return self.leads[pieces]

    def behind(self, pieces: tuple[Piece, ...], follow: int) -> int:
        """Return the state from which ``follow`` bytes spell one of the characters of a block."""
        if not pieces:
            return self.dead
        if not follow:
            return pieces[0][2]
        size = 64**follow
        base = pieces[0][0] // size * size
        key = (follow, tuple((low - base, high - base, state) for low, high, state in pieces))
        if key not in self.known:
            self.known[key] = -1 - len(self.inner)
            row = [self.dead] * 256
            self.inner.append(row)
            row[0x80:0xC0] = self.following(pieces, base, follow)
        return self.known[key]

    def following(self, pieces: tuple[Piece, ...], base: int, follow: int) -> list[int]:
        """Return the state behind each byte in a block of characters that begins at ``base``."""
        row = [self.dead] * 64
        step = 64 ** (follow - 1)
        cut = set()
        for low, high, state in pieces:
            first, last = (low - base + step - 1) // step, (high + 1 - base) // step
            if first < last:  # blocks that are all of this piece are all the same
                whole = self.behind(((0, step - 1, state),), follow - 1)
                row[first:last] = [whole] * (last - first)
            cut |= {(low - base) // step, (high - base) // step} - set(range(first, last))
        for place in cut:
            begin = base + place * step
            row[place] = self.behind(_within(pieces, begin, begin + step - 1), follow - 1)
        return row


def _within(pieces: tuple[Piece, ...], first: int, last: int) -> tuple[Piece, ...]:
    """Return the parts of ranges that lie between two code points."""
    return tuple(
        (max(low, first), min(high, last), state)
        for low, high, state in pieces
        if low <= last and high >= first
    )
