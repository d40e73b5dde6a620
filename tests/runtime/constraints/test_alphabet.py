import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.constraints.alphabet import Alphabet
from dlmc_runtime.constraints.characters import Characters
from dlmc_runtime.errors import RequestError

EDGES = (0, 0x41, 0x7F, 0x80, 0xFF, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)
CODES = st.one_of(st.sampled_from(EDGES), st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF))
RANGES = st.lists(st.tuples(CODES, CODES).map(lambda pair: tuple(sorted(pair))), max_size=4)


@given(ranges=RANGES, more=RANGES, codes=st.lists(CODES, max_size=8))
def test_characters_are_spelled_in_bytes(machine, matches, ranges, more, codes):
    one, two = Characters.of(*ranges), Characters.of(*more)
    made = machine(f"{one.pattern()}a|{two.pattern()}b|c")
    edges = [edge for pair in (*one.ranges, *two.ranges) for edge in pair]
    around = {code + step for code in edges for step in (-1, 0, 1)} | {*codes}
    for code in around:
        if 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            assert matches(made, chr(code) + "a") == (chr(code) in one)
            assert matches(made, chr(code) + "b") == (chr(code) in two)
    assert not np.isin([0xC0, 0xC1, 0xF5, 0xFF], np.flatnonzero(used(made))).any()


def used(made):
    return (made.table[:, made.classes] != made.states).any(0)


def test_characters_that_are_not_told_apart_are_one_letter():
    alphabet = Alphabet.of(r"[\x{61}-\x{7A}\x{3B1}-\x{3C9}]|\x{20AC}")
    assert alphabet.letter(0x3B1) == alphabet.letter(0x3C0) == alphabet.letter(0x3C9)
    letters = [alphabet.letter(code) for code in (0x80, 0x3B1, 0x3CA, 0x20AC, 0x20AD, 0x10FFFF)]
    assert letters == [128, 129, 130, 131, 132, 132]
    assert alphabet.rewrite(r"[\x{3B1}-\x{3C9}]|\x{20AC}") == r"[\x{81}-\x{81}]|\x{83}"
    assert alphabet.alike[ord("q")] == alphabet.alike[ord("b")] != alphabet.alike[ord("{")]
    assert len(alphabet.spelled) < 40


def test_too_many_different_characters_are_refused():
    with pytest.raises(RequestError, match="too many characters"):
        Alphabet.of("".join(rf"\x{{{code:X}}}" for code in range(0x4E00, 0x5E00, 2)))
