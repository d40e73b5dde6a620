import pytest

from dlmc.targets import build as targets_build
from dlmc.validate import built as validate
from dlmc.validate.report import Place, Report, Row
from dlmc_runtime.manifest import Tolerance


@pytest.fixture
def built(monkeypatch):
    """Count what is built instead of building it."""
    plans: list[object] = []
    monkeypatch.setattr(targets_build, "build_engine", plans.append)
    return plans


def test_a_dry_run_shows_and_builds_nothing(dlmc, bundle, built):
    outcome = dlmc("build", str(bundle), "--dry-run")
    assert (outcome.status, outcome.err, built) == (0, "", [])
    assert outcome.out.startswith("would build")
    assert "profile  batch  block  cache  rows  memory" in outcome.out


def test_options_choose_the_profiles(dlmc, bundle, built):
    outcome = dlmc(
        *("build", str(bundle), "--batch", "1,2", "--block", "8", "--cache", "16"),
        *("--prefill", "12", "--dry-run", "--json"),
    )
    shapes = [(p["batch"], p["block"], p["cache"], p["rows"]) for p in outcome.json["profiles"]]
    assert shapes == [(1, 8, 16, 8), (1, 12, 16, 1), (2, 8, 16, 8), (2, 12, 16, 1)]
    assert outcome.json["built"] is False
    assert outcome.json["profiles"][0]["memory"]["cache"] == 2 * 2 * 4 * 16 * 4


@pytest.fixture
def compared(monkeypatch):
    """Let the short validation find what a test says; return what it was asked to compare."""
    asked: list[str] = []

    def let(found):
        def validate_built(bundle, name):
            asked.append(name)
            return found

        monkeypatch.setattr(validate, "validate_built", validate_built)
        return asked

    return let


def report(*, ok):
    where = Place("top_logits", 0, 2, 17, (0, 1, 0), 1.5, 1.25)
    row = Row("top_logits", 9, 0 if ok else 1, 0.25, Tolerance(atol=0.1), ok, where)
    return Report("b", "e", "graph", "float32", "none", {}, ("p",), 3, (row,))


def test_a_build_is_compared_and_says_what_comes_next(dlmc, bundle, built, compared):
    asked = compared(report(ok=True))
    outcome = dlmc("build", str(bundle))
    assert outcome.out.startswith("building")
    assert outcome.out.endswith(
        "built and agrees with graph in 3 forwards; "
        f"next: dlmc run {bundle} --target onnxruntime-cpu\n"
    )
    assert (len(built), asked) == (1, ["onnxruntime-cpu"])
    found = dlmc("build", str(bundle), "--json").json
    assert found["built"] is True
    assert found["validation"] == {"ok": True, "against": "graph", "failures": []}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_build_that_disagrees_ends_with_status_1(dlmc, bundle, built, compared, options):
    compared(report(ok=False))
    outcome = dlmc("build", str(bundle), *options)
    assert outcome.status == 1
    assert outcome.err == (
        "dlmc: error: onnxruntime-cpu disagrees with graph in top_logits at prompt 0, forward 2, "
        "position 17 [0,1,0]: 1.5, not 1.25 (1 of 9 differ): do not use it; "
        f"dlmc validate {bundle} --target onnxruntime-cpu --bisect says where\n"
    )
    assert "dlmc run" not in outcome.out
    assert outcome.out


def test_a_build_that_cannot_be_compared_says_why(dlmc, bundle, built, compared):
    compared("it needs a GPU")
    assert "built and not validated (it needs a GPU); next" in dlmc("build", str(bundle)).out
    found = dlmc("build", str(bundle), "--json").json["validation"]
    assert found == {"ok": None, "reason": "it needs a GPU"}


def test_comparing_can_be_left_out(dlmc, bundle, built, compared):
    asked = compared(report(ok=False))
    assert dlmc("build", str(bundle), "--no-validate").status == 0
    assert dlmc("build", str(bundle), "--dry-run").status == 0
    assert asked == []


def test_options_reach_the_plan(dlmc, bundle, built):
    outcome = dlmc(
        *("build", str(bundle), "--target", "openvino-cpu", "--precision", "bf16"),
        *("--quantize", "int4", "--model-cache", "--dry-run", "--json"),
    )
    assert outcome.json["name"] == "openvino-cpu-bf16-int4"
    assert (outcome.json["precision"], outcome.json["quantization"]) == ("bfloat16", "int4")
    assert outcome.json["profiles"][0]["memory"]["cache"] == 2 * 2 * 4 * 32 * 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch", "1,x"], "--batch is '1,x': give sizes like 1,4"),
        (["--batch", ""], "--batch is ''"),
        (["--batch", "0"], "--batch holds 0"),
        (["--block", "0"], "--block is 0"),
        (["--target", "abacus"], "no target is called 'abacus'"),
        (["--precision", "f8"], "--precision is 'f8': choose one of f32, f16, bf16"),
        (["--precision", "f16"], "onnxruntime-cpu cannot compute in f16: it can in f32"),
        (["--execution-provider", "x"], "--execution-provider is 'x': choose one of cuda, tens"),
        (["--cuda-graph"], "--cuda-graph makes no difference to onnxruntime-cpu"),
        (["--quantize", "int2"], "--quantize is 'int2': choose one of none, int8"),
        (["--refit"], "--refit makes no difference to onnxruntime-cpu: leave it out; it is for"),
        (["--calibration", "prompts.txt"], "--calibration is for w8a8"),
    ],
)
def test_bad_options_are_usage_errors(dlmc, bundle, options, sentence):
    outcome = dlmc("build", str(bundle), *options)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"dlmc: error: {sentence}")
