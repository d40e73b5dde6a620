import pytest

from dlmc_runtime import legal, samplers
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.serve import effort

NOISE = {"tokens": {"mask": None, "stop": (60,), "pad": 61, "suppressed": ()}}
EDITS = {
    "tokens": {"mask": 63, "stop": (60,), "pad": 61, "suppressed": (63,), "delete": 1, "split": 2}
}


def configs(manifest):
    """Return every sampler of every kind of model, with its defaults and what else sets a pace."""
    for regime in ("full", "block", "context"):
        for changes in ({}, EDITS, NOISE):
            if changes is NOISE and regime != "context":
                continue
            made = manifest(regime, **changes)
            for name in legal.samplers_for(made.attention.regime, made.tokens):
                for options in ({}, {"threshold": 0.5}, {"factor": 1.5}, {"steps": 2}):
                    try:
                        config = SamplerConfig(name, **options)
                        legal.check(config, made)
                    except DlmcError:
                        continue
                    yield made, config


def test_every_level_of_every_sampler_is_legal_with_every_model(manifest):
    seen = set()
    for made, config in configs(manifest):
        for level in effort.LEVELS:
            for answer in (1, 16, 200):
                legal.check(effort.preset(config, level, made.attention, answer), made)
        seen.add(config.name)
    assert seen == set(samplers.SAMPLERS) == set(effort.OPTIONS)


def test_medium_is_the_sampler_as_it_is(manifest):
    for made, config in configs(manifest):
        assert effort.preset(config, "medium", made.attention, 64) == config


def test_less_effort_is_never_slower(manifest):
    slower_where_larger = {"threshold", "low_threshold", "min_threshold", "stability_threshold"}
    for made, config in configs(manifest):
        levels = [effort.preset(config, one, made.attention, 16) for one in effort.LEVELS]
        changed = {
            name
            for name in config.__dataclass_fields__
            if len({getattr(one, name) for one in levels}) > 1
        }
        assert changed or config.name in ("dus", "autoregressive", "linear_speculation")
        for name in changed - {"steps"}:
            values = [getattr(one, name) for one in levels]
            numbers = [value for value in values if value is not None]
            assert numbers == sorted(numbers, reverse=name not in slower_where_larger)


@pytest.mark.parametrize(
    ("name", "given", "level", "expected"),
    [
        ("low_confidence", {}, "instant", {"threshold": 0.8}),
        ("low_confidence", {}, "high", {}),
        ("low_confidence", {"threshold": 0.9}, "high", {"threshold": 0.95}),
        ("low_confidence", {"threshold": 0.9}, "low", {"threshold": 0.8}),
        ("low_confidence", {"threshold": 0.4}, "instant", {"threshold": 0.2}),
        ("low_confidence", {"factor": 1.0}, "low", {"factor": 2.0}),
        ("low_confidence", {"steps": 8}, "low", {"steps": 4}),
        ("low_confidence", {"steps": 8}, "high", {"steps": 16}),
        ("low_confidence_dynamic", {}, "low", {"threshold": 0.7}),
        ("credit", {"factor": 1.0}, "low", {"factor": 2.0}),
        ("credit", {}, "low", {"threshold": 0.8}),
        ("random", {}, "instant", {"steps": 4}),
        ("random", {"steps": 1}, "instant", {"steps": 1}),
        ("random", {}, "high", {"steps": 16}),
        ("remdm", {}, "high", {"steps": 32}),
        ("fixed", {}, "low", {"threshold": 0.8, "most": 2}),
        ("dus", {}, "instant", {}),
    ],
)
def test_a_level_sets_the_pace_by_what_the_sampler_heeds(manifest, name, given, level, expected):
    full = manifest("full", attention={"regime": "full", "block_length": 256})
    config = effort.preset(SamplerConfig(name, **given), level, full.attention, 16)
    wanted = SamplerConfig(name, **{**given, **expected})
    for option in config.__dataclass_fields__:
        assert getattr(config, option) == pytest.approx(getattr(wanted, option)), option


def test_a_canvas_of_random_tokens_settles_earlier_or_later(manifest):
    made = manifest("context", **NOISE)
    low = effort.preset(SamplerConfig("renoise"), "low", made.attention, 64)
    high = effort.preset(SamplerConfig("renoise"), "high", made.attention, 64)
    assert (low.entropy_bound, low.confidence_threshold) == (0.2, 0.01)
    assert (high.entropy_bound, high.stability_threshold) == (0.05, 2)
    assert low.steps is high.steps is None


def test_a_template_that_can_think_is_told_to():
    reads = frozenset({"enable_thinking", "messages"})
    assert effort.variables("instant", reads) == {"enable_thinking": False}
    assert effort.variables("low", reads) == {"enable_thinking": True}
    assert effort.variables("instant", frozenset({"messages"})) == {}
    assert effort.variables("instant", frozenset({"reasoning_effort"})) == {
        "reasoning_effort": "low"
    }
