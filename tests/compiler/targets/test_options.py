from pathlib import Path

import pytest

from dlmc.targets import TARGETS, Target
from dlmc.targets import options as module
from dlmc.targets.options import (
    BuildOptions,
    check_options,
    default_precision,
    engine_name,
    parse_precision,
)
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Profile, TargetSpec, Tolerance


@pytest.fixture
def able(monkeypatch):
    """A target that can do several things."""
    rows = {
        "abacus": Target(
            "abacus",
            "",
            {"float32": ("none", "int8"), "bfloat16": ("none", "int4")},
            frozenset({"refit", "compute_capability", "graph"}),
        )
    }
    monkeypatch.setattr(module, "TARGETS", rows)


def test_every_target_computes_in_something_without_quantization():
    for name, target in TARGETS.items():
        assert default_precision(name) in target.choices
        assert all(kinds[0] == "none" for kinds in target.choices.values())
        assert target.options <= set(BuildOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "precision"),
    [("f32", "float32"), ("fp32", "float32"), ("float16", "float16"), ("bf16", "bfloat16")],
)
def test_a_precision_has_a_short_and_a_long_name(text, precision):
    assert parse_precision(text) == precision


def test_another_precision_is_refused():
    with pytest.raises(UsageError, match="--precision is 'f8': choose one of f32, f16, bf16"):
        parse_precision("f8")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (BuildOptions(precision="float16"), "abacus cannot compute in f16: it can in f32, bf16"),
        (
            BuildOptions(precision="bfloat16", quantization="int8"),
            "abacus in bf16 takes no int8 weights: it takes none, int4",
        ),
        (BuildOptions(version_compatible=True), "--version-compatible makes no difference to"),
        (BuildOptions(log=Path("x")), "--log makes no difference to abacus: leave it out"),
    ],
)
def test_what_a_target_cannot_do_is_refused(able, options, problem):
    with pytest.raises(UsageError, match=problem):
        check_options("abacus", options)


def test_what_nobody_says_is_as_the_target_has_it(able):
    assert check_options("abacus", BuildOptions()) == TargetSpec(target="abacus")
    options = BuildOptions(precision="bfloat16", quantization="int4", refit=True, graph=Path("g"))
    wanted = TargetSpec(target="abacus", precision="bfloat16", quantization="int4")
    assert check_options("abacus", options) == wanted


def test_a_recipe_s_first_entry_is_the_default_and_another_can_be_asked_for(able):
    profile = Profile(batch=1, block=4, cache=8, rows=4)
    recipe = [
        TargetSpec(target="other"),
        TargetSpec(target="abacus", precision="bfloat16", quantization="int4", profiles=(profile,)),
        TargetSpec(target="abacus", quantization="int8", tolerances={"entropy": Tolerance(atol=1)}),
    ]
    assert check_options("abacus", BuildOptions(), recipe) is recipe[1]
    asked = BuildOptions(precision="float32", quantization="int8")
    assert check_options("abacus", asked, recipe) is recipe[2]
    plain = check_options("abacus", BuildOptions(quantization="none"), recipe)
    assert plain == TargetSpec(target="abacus", precision="bfloat16")  # without its profiles


def test_an_engine_is_named_after_what_is_not_the_target_s_default(able):
    plain = TargetSpec(target="abacus")
    assert engine_name(plain, BuildOptions()) == "abacus"
    assert engine_name(plain.model_copy(update={"quantization": "int8"}), BuildOptions()) == (
        "abacus-int8"
    )
    low = TargetSpec(target="abacus", precision="bfloat16", quantization="int4")
    assert engine_name(low, BuildOptions(refit=True)) == "abacus-bf16-int4"
    options = BuildOptions(graph=Path("g.onnx"), compute_capability=("sm89", "sm120"))
    assert engine_name(low, options) == "abacus-bf16-int4-graph-sm89-sm120"
