from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.constraints.characters import EVERY, NOTHING, Characters

SETS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4).map(
    lambda parts: Characters.of(*((low, low + more) for low, more in parts))
)


def members(characters):
    return {code for code in range(60) if chr(code) in characters}


@given(one=SETS, other=SETS)
def test_sets_of_characters_are_sets(one, other):
    first, second = members(one), members(other)
    assert members(one | other) == first | second
    assert members(one & other) == first & second
    assert members(one - other) == first - second
    assert members(EVERY - one) == set(range(60)) - first
    assert bool(one) == bool(first)


def test_halves_of_characters_are_no_characters():
    assert "\ud800" not in EVERY
    assert "\ud7ff" in EVERY
    assert "\U0010ffff" in EVERY


def test_an_empty_set_matches_nothing():
    assert Characters(()).pattern() == NOTHING
    assert Characters.of("ab", (0x3B1, 0x3B2)).pattern() == r"[\x{61}-\x{62}\x{3B1}-\x{3B2}]"
