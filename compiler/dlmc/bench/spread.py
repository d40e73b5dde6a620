"""What repeated measurements say, and when they say little."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

NOISY = 0.1
"""Share of the median that p10 and p90 may be apart before a measurement counts as noisy."""


@dataclass(frozen=True)
class Spread:
    """Repeated measurements of one thing, in whatever unit they were taken.

    Attributes:
        n: how many.
        median: middle value.
        minimum: smallest value.
        p10: tenth percentile, interpolated.
        p90: ninetieth percentile, interpolated.
    """

    n: int
    median: float
    minimum: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Summarize at least one value."""
        found = np.fromiter(values, np.float64)
        low, middle, high = np.percentile(found, (10, 50, 90))
        return cls(len(found), float(middle), float(found.min()), float(low), float(high))

    @property
    def width(self) -> float:
        """Distance from p10 to p90 as a share of the median."""
        return (self.p90 - self.p10) / self.median if self.median else 0.0

    def scaled(self, factor: float) -> "Spread":
        """Return the same measurements in another unit."""
        values = (self.median, self.minimum, self.p10, self.p90)
        return Spread(self.n, *(value * factor for value in values))
