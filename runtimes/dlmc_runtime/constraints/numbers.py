"""Expressions for the numbers between two bounds, as JSON writes them."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from dlmc_runtime.constraints.characters import NOTHING

INTEGER_DIGITS = 15
"""Digits of an integer, at most: any of them is a float of its own."""

WHOLE_DIGITS, FRACTION_DIGITS = 9, 6
"""Digits before and behind the point of a number that has a bound, at most."""

ANY_INTEGER = rf"-?(?:0|[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}})"
ANY_NUMBER = rf"{ANY_INTEGER}(?:\.[0-9]{{1,{INTEGER_DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
_UNIT = 10**FRACTION_DIGITS


@dataclass(frozen=True)
class Bounds:
    """What a number may be; None bounds nothing."""

    least: Decimal | None = None
    most: Decimal | None = None
    above: Decimal | None = None
    below: Decimal | None = None

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return any(one is not None for one in (self.least, self.most, self.above, self.below))

    def within(self, unit: int, limit: int) -> tuple[int, int]:
        """Return the least and the greatest multiple of 1/``unit`` in it, up to ``limit`` of them.

        Both are whole numbers of units; the first is the greater one where there is none.
        """
        low, high = [-limit], [limit]
        if self.least is not None:
            low.append(_whole(self.least * unit, ROUND_CEILING, limit))
        if self.above is not None:
            low.append(_whole(self.above * unit, ROUND_FLOOR, limit) + 1)
        if self.most is not None:
            high.append(_whole(self.most * unit, ROUND_FLOOR, limit))
        if self.below is not None:
            high.append(_whole(self.below * unit, ROUND_CEILING, limit) - 1)
        return max(low), min(high)


def _whole(value: Decimal, rounding: str, limit: int) -> int:
    """Round to a whole number; one far beyond the limit is as good as any such."""
    if abs(value) > 2 * limit:
        return 2 * limit + 2 if value > 0 else -2 * limit - 2
    return int(value.to_integral_value(rounding))


def integer(bounds: Bounds) -> str:
    """Return an expression for the integers within ``bounds``; without one for any."""
    if not bounds.given:
        return ANY_INTEGER
    low, high = bounds.within(1, 10**INTEGER_DIGITS - 1)
    return _signed(low, high, _natural)


def number(bounds: Bounds) -> str:
    """Return an expression for the numbers within ``bounds``, without exponents where there is one.

    They are multiples of 10 to the power of minus `FRACTION_DIGITS`.
    """
    if not bounds.given:
        return ANY_NUMBER
    low, high = bounds.within(_UNIT, 10**WHOLE_DIGITS * _UNIT - 1)
    return _signed(low, high, _decimal)


def _signed(low: int, high: int, between: Callable[[int, int], str]) -> str:
    parts = []
    if low < 0 and low <= high:
        parts.append("-" + between(max(1, -high), -low))
    if high >= max(low, 0):
        parts.append(between(max(low, 0), high))
    return f"(?:{'|'.join(parts)})" if parts else NOTHING


def _natural(low: int, high: int) -> str:
    """Return the naturals from ``low`` to ``high``."""
    parts = []
    for digits in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        parts.append(_digits(str(first), str(min(high, 10**digits - 1))))
    return f"(?:{'|'.join(parts)})"


def _digits(low: str, high: str) -> str:
    """Return the strings of digits from ``low`` to ``high``, which are as long."""
    count = len(low)
    if low == "0" * count and high == "9" * count:
        return f"[0-9]{{{count}}}"
    if low[0] == high[0]:
        return low[0] + (_digits(low[1:], high[1:]) if count > 1 else "")
    return f"(?:{'|'.join(_split(low, high, _digits, f'[0-9]{{{count - 1}}}'))})"


def _split(low: str, high: str, within: Callable[[str, str], str], rest: str) -> list[str]:
    """Return alternatives by the first digit, of which the two numbers have different ones."""
    count = len(low) - 1
    first, last = int(low[0]), int(high[0])
    parts = [low[0] + (within(low[1:], "9" * count) if count else "")]
    if first + 1 < last:
        parts.append(f"[{first + 1}-{last - 1}]{rest if count else ''}")
    parts.append(high[0] + (within("0" * count, high[1:]) if count else ""))
    return parts


def _decimal(low: int, high: int) -> str:
    """Return the decimals from ``low`` to ``high`` units."""
    (first, begin), (last, end) = divmod(low, _UNIT), divmod(high, _UNIT)
    if first == last:
        return f"{first}{_fraction(begin, end)}"
    parts = [f"{first}{_fraction(begin, _UNIT - 1)}"]
    if first + 1 < last:
        parts.append(f"{_natural(first + 1, last - 1)}{_fraction(0, _UNIT - 1)}")
    parts.append(f"{last}{_fraction(0, end)}")
    return f"(?:{'|'.join(parts)})"


def _fraction(low: int, high: int) -> str:
    """Return the fractions from ``low`` to ``high`` units, with their point; nothing is 0."""
    written = rf"\.{_some(*(str(one).zfill(FRACTION_DIGITS) for one in (low, high)))}"
    return f"(?:{written})?" if not low else written


def _some(low: str, high: str) -> str:
    """Return strings of one digit up to as many as ``low``: what follows them counts as zeros."""
    count = len(low)
    if low == "0" * count and high == "9" * count:
        return f"[0-9]{{1,{count}}}"
    if low[0] == high[0]:
        return low[0] + (_any(low[1:], high[1:]) if count > 1 else "")
    return f"(?:{'|'.join(_split(low, high, _any, f'[0-9]{{0,{count - 1}}}'))})"


def _any(low: str, high: str) -> str:
    """Return the same, and no digit at all where that is within."""
    some = _some(low, high)
    return f"(?:{some})?" if low == "0" * len(low) else some
