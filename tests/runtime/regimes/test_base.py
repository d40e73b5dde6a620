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


def pieces(row):
    """Return where the pieces of a row's cache end."""
    ends: list[int] = []
    end = row.regime.piece_end(0)
    while end is not None and end <= len(row.canvas) and (not ends or end > ends[-1]):
        ends.append(end)
        end = row.regime.piece_end(end)
    return ends


ANSWER = {"regime": "block", "block_length": 4, "aligned_to": "answer"}
CAUSAL = {"regime": "context", "block_length": 8, "aligned_to": "answer", "last_block": "cut"}


@pytest.mark.parametrize(
    ("prompt", "count", "sampler", "changes", "prompt_end", "ends"),
    [
        (6, 4, "low_confidence", {"regime": "block"}, 4, [4, 8, 12]),
        (8, 4, "low_confidence", {"regime": "block"}, 8, [4, 8, 12]),
        (6, 4, "low_confidence", {"regime": "block", "attention": ANSWER}, 6, [2, 6, 10]),
        (70, 9, "low_confidence", {"regime": "context", "attention": CAUSAL}, 70, [32, 64]),
        (70, 9, "autoregressive", {"regime": "context", "attention": CAUSAL}, 70, [32, 64]),
        (6, 4, "low_confidence", {"regime": "full"}, 0, []),
    ],
)
def test_a_cache_falls_into_pieces(manifest, prompt, count, sampler, changes, prompt_end, ends):
    row = Row(Request((7,) * prompt, count, SamplerConfig(sampler)), manifest(**changes))
    assert row.regime.prompt_end == prompt_end
    assert pieces(row) == ends


def test_the_pieces_of_a_prompt_are_those_of_every_text_that_begins_with_it(manifest):
    config = SamplerConfig("low_confidence")
    for changes in ({"regime": "block"}, {"regime": "context", "attention": CAUSAL}):
        made = manifest(**changes)
        longest = pieces(Row(Request((7,) * 90, 8, config), made))
        for length in (1, 4, 33, 64, 89):
            own = pieces(Row(Request((7,) * length, 8, config), made))
            assert own == longest[: len(own)]
