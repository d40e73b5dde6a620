"""What a row's forwards are: one file for each way of going through a sequence."""

from typing import TYPE_CHECKING

from dlmc_runtime.regimes.base import Regime
from dlmc_runtime.regimes.canvas import Canvas
from dlmc_runtime.regimes.exact import Exact
from dlmc_runtime.regimes.expanding import Expanding
from dlmc_runtime.regimes.speculative import Speculative
from dlmc_runtime.regimes.whole import Shadowed, Whole

if TYPE_CHECKING:
    from dlmc_runtime.row import Row

_BY_SAMPLER: dict[str, type[Regime]] = {
    "wino": Shadowed,
    "autoregressive": Speculative,
    "linear_speculation": Speculative,
    "renoise": Canvas,
}


def choose(row: "Row") -> Regime:
    """Return the regime of a row: its sampler's own, or else that of its model."""
    if row.holes and row.tokens.expand is not None:
        return Expanding(row)
    usual = Whole if row.attention.regime == "full" else Exact
    return _BY_SAMPLER.get(row.request.sampler.name, usual)(row)
