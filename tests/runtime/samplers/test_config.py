import math

import pytest

from dlmc_runtime.errors import UsageError
from dlmc_runtime.samplers import SAMPLERS
from dlmc_runtime.samplers.config import SamplerConfig


def refusal(**parameters):
    with pytest.raises(UsageError) as caught:
        SamplerConfig(**parameters)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return str(caught.value)


def test_an_unknown_sampler_lists_the_known_ones():
    message = refusal(name="greedy")
    assert "'greedy'" in message
    for name in SAMPLERS:
        assert name in message


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("steps", [0, -1, 1.0, 2.5, True, "4", 16385, 1 << 70]),
        ("threshold", [0, 0.0, -0.1, 1.01, math.nan, math.inf, "0.9", True]),
        ("factor", [-0.5, math.nan, math.inf, "1", 1e10, 10**400]),
        ("temperature", [-0.1, 1e-9, 9e-4, 1e30, math.nan, math.inf, "0", False]),
        ("top_k", [-1, 1.0, True, "5"]),
        ("top_p", [0, 1.5, -1, math.nan, "1", None]),
        ("alg_temp", [-1, 1e-9, 1e30, math.nan, "0"]),
        ("eps", [0, 1, math.nan, None]),
        ("guidance", [-1, 1e4, math.nan, None]),
        ("top_k", [None]),
        ("block_length", [0, -4, 2.0, False]),
        ("edit_threshold", [-0.1, 1.1, math.nan, "0"]),
        ("max_post_steps", [-1, 1.5, True, 16385]),
        ("max_steps", [0, -1, 2.0, 16385]),
        ("least", [0, 1.0, True]),
        ("order", ["margin", 1, True]),
        ("defer_ids", [5, "12", [1, 2], (1.5,), (True,), ("a",)]),
    ],
)
def test_an_illegal_value_names_the_parameter(name, values):
    for value in values:
        assert refusal(**{name: value}).startswith(f"{name} is {value!r}: it must be ")


def test_legal_values_are_kept():
    config = SamplerConfig(
        name="random",
        steps=1,
        threshold=1,
        temperature=1e-3,
        top_k=3,
        top_p=0.5,
        block_length=8,
        defer_ids=(1, 2),
    )
    assert (config.steps, config.threshold, config.defer_ids) == (1, 1, (1, 2))
    assert SamplerConfig(temperature=0).temperature == 0
    assert SamplerConfig(factor=0).factor == 0
    assert SamplerConfig("token_editing", edit_threshold=0.0).edit_threshold == 0
    assert SamplerConfig("token_editing", max_post_steps=0).max_post_steps == 0


def test_threshold_and_factor_exclude_each_other():
    assert "exclude each other" in refusal(threshold=0.5, factor=1.0)


def test_updated_changes_what_is_given():
    config = SamplerConfig(threshold=0.5).updated(temperature=0.7, steps=None)
    assert config == SamplerConfig(threshold=0.5, temperature=0.7)


def test_updated_refuses_what_it_does_not_know():
    with pytest.raises(UsageError, match=r"no parameter 'temperatur'.*temperature"):
        SamplerConfig().updated(temperatur=1)
    with pytest.raises(UsageError, match="steps is 0"):
        SamplerConfig().updated(steps=0)
