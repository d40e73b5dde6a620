import pytest

from dlmc_runtime.errors import UsageError
from dlmc_runtime.samplers.choice import choose
from dlmc_runtime.samplers.config import SamplerConfig


@pytest.mark.parametrize(
    ("default", "name", "given", "expected"),
    [
        (SamplerConfig(threshold=0.9), None, {}, SamplerConfig(threshold=0.9)),
        (SamplerConfig(threshold=0.9), None, {"steps": 4}, SamplerConfig(steps=4)),
        (SamplerConfig(threshold=0.9), "random", {}, SamplerConfig("random")),
        (
            SamplerConfig("low_confidence_dynamic", threshold=0.9),
            None,
            {"steps": 2},
            SamplerConfig("low_confidence_dynamic", threshold=0.9, steps=2),
        ),
        (
            SamplerConfig(threshold=0.9, block_length=16),
            None,
            {"factor": 1.0, "top_p": 0.9},
            SamplerConfig(factor=1.0, block_length=16, top_p=0.9),
        ),
        (SamplerConfig(steps=4), None, {"threshold": 0.8}, SamplerConfig(threshold=0.8)),
    ],
)
def test_the_sampler_is_the_bundles_unless_something_is_given(default, name, given, expected):
    options = {"steps": None, "threshold": None, "temperature": None, **given}
    assert choose(default, name, options) == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("random", {"threshold": 0.9}),
        ("sequential", {"threshold": 0.9}),
        ("low_confidence_static", {"factor": 1.0}),
        ("low_confidence_dynamic", {"factor": 1.0}),
    ],
)
def test_an_option_that_a_sampler_does_not_heed_is_refused(name, given):
    (option,) = given
    with pytest.raises(UsageError, match=f"{name} takes no {option}"):
        choose(SamplerConfig(), name, given)
