from typing import Any, cast

import pytest

from dlmc_runtime import regimes
from dlmc_runtime.regimes.base import Regime
from dlmc_runtime.regimes.exact import Exact
from dlmc_runtime.regimes.expanding import Expanding
from dlmc_runtime.regimes.speculative import Speculative
from dlmc_runtime.regimes.whole import Shadowed, Whole
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig

GROWING = {"mask": 63, "stop": (60,), "pad": 60, "suppressed": (63,), "expand": 58, "delete": 60}


@pytest.mark.parametrize(
    ("regime", "sampler", "holes", "changes", "kind"),
    [
        ("full", "low_confidence", (), {}, Whole),
        ("full", "low_confidence", ((0, 1),), {}, Whole),
        ("full", "low_confidence", ((0, 1),), {"tokens": GROWING}, Expanding),
        ("full", "low_confidence", (), {"tokens": GROWING}, Whole),
        ("full", "wino", (), {}, Shadowed),
        ("block", "low_confidence", (), {}, Exact),
        ("context", "low_confidence", (), {}, Exact),
        ("context", "autoregressive", (), {}, Speculative),
        ("context", "linear_speculation", (), {}, Speculative),
    ],
)
def test_model_and_sampler_choose(manifest, regime, sampler, holes, changes, kind):
    request = Request((63, 2), 4, SamplerConfig(sampler), holes=holes)
    row = Row(request, manifest(regime, **changes))
    assert type(row.regime) is kind
    assert type(regimes.choose(row)) is kind


def test_the_base_class_does_nothing_by_itself(manifest):
    row = Row(Request((1,), 4, SamplerConfig()), manifest("full"))
    one, nothing = Regime(row), cast("Any", None)
    for ask in (
        lambda: one.cache_needed,
        lambda: one.block_needed,
        lambda: one.head_needed,
        one.begin,
        lambda: one.task(1),
        lambda: one.done(row.task(1), nothing, nothing),
    ):
        with pytest.raises(NotImplementedError):
            ask()


def test_idle_steps_are_skipped_until_one_is_not(manifest):
    config = SamplerConfig("entropy", steps=12, block_length=4)
    row = Row(Request((1,), 4, config), manifest("full"))
    assert row.step > 0  # Dream's first steps commit none of four positions over twelve steps
    assert not row.sampler.idle(row.state())
