import pytest

from dlmc.targets import build as targets_build


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


def test_a_build_says_what_comes_next(dlmc, bundle, built):
    outcome = dlmc("build", str(bundle))
    assert outcome.out.startswith("building")
    assert outcome.out.endswith(f"dlmc run {bundle} --target onnxruntime-cpu\n")
    assert len(built) == 1
    assert dlmc("build", str(bundle), "--json").json["built"] is True


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch", "1,x"], "--batch is '1,x': give sizes like 1,4"),
        (["--batch", ""], "--batch is ''"),
        (["--batch", "0"], "--batch holds 0"),
        (["--block", "0"], "--block is 0"),
        (["--target", "abacus"], "no target is called 'abacus'"),
    ],
)
def test_bad_options_are_usage_errors(dlmc, bundle, options, sentence):
    outcome = dlmc("build", str(bundle), *options)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"dlmc: error: {sentence}")
