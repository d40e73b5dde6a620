import pytest

from dlmc.bench.spread import Spread


def test_percentiles_lie_between_values():
    spread = Spread.of(range(11))
    assert spread == Spread(11, 5.0, 0.0, 1.0, 9.0)
    assert spread.width == pytest.approx(8 / 5)


def test_one_value_has_no_width():
    spread = Spread.of([2.5])
    assert (spread.n, spread.median, spread.p10, spread.p90) == (1, 2.5, 2.5, 2.5)
    assert spread.width == 0.0


def test_values_that_are_all_zero_have_no_width():
    assert Spread.of([0.0, 0.0]).width == 0.0


def test_another_unit():
    assert Spread.of([1.0, 3.0]).scaled(1e3) == Spread(2, 2000.0, 1000.0, 1200.0, 2800.0)
