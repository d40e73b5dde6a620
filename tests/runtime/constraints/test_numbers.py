import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.constraints.characters import NOTHING
from dlmc_runtime.constraints.numbers import Bounds, integer, number

ENDS = st.none() | st.integers(-240, 240).map(lambda halves: Decimal(halves) / 2)
DECIMALS = st.none() | st.decimals(-30, 30, places=2) | st.sampled_from([Decimal("1e300")])
WRITTEN = ("0", "0.5", "1", "-0.01", "12.25", "-30", "29.99", "0.000001", "7.0", "100", "-0.1")


def inside(bounds, value):
    return (
        (bounds.least is None or value >= bounds.least)
        and (bounds.most is None or value <= bounds.most)
        and (bounds.above is None or value > bounds.above)
        and (bounds.below is None or value < bounds.below)
    )


@given(bounds=st.builds(Bounds, ENDS, ENDS, ENDS, ENDS))
def test_integers_are_those_within_the_bounds(machine, matches, bounds):
    found = integer(bounds)
    wanted = {value for value in range(-130, 131) if inside(bounds, value)}
    if found == NOTHING:
        assert not wanted
        return
    made = machine(found)
    assert {value for value in range(-130, 131) if matches(made, str(value))} == wanted
    assert not matches(made, "01")


@given(bounds=st.builds(Bounds, DECIMALS, DECIMALS, DECIMALS, DECIMALS), seed=st.integers(0, 99))
def test_numbers_are_those_within_the_bounds(machine, matches, walk, bounds, seed):
    found = number(bounds)
    if found == NOTHING:
        assert not any(inside(bounds, Decimal(text)) for text in WRITTEN)
        return
    made = machine(found)
    for text in WRITTEN:
        assert matches(made, text) == inside(bounds, Decimal(text)), text
    for step in range(5):
        text = walk(made, random.Random(seed + step), 12)
        assert inside(bounds, Decimal(text)), text


@pytest.mark.parametrize("text", ["0", "-1", "12.5", "1e5", "-0.25E-10", "123456789012345"])
def test_a_number_without_bounds_is_written_as_json_does(machine, matches, text):
    assert matches(machine(number(Bounds())), text)


@pytest.mark.parametrize("text", ["01", "+1", ".5", "1.", "1e", "--1", "1234567890123456"])
def test_what_is_no_number_is_not_matched(machine, matches, text):
    assert not matches(machine(number(Bounds())), text)
