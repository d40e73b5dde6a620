import shutil

import pytest
from damage import copy_engine
from sealing import reseal

from dlmc.validate.engines import choose_engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import BundleError, EngineError, UsageError


@pytest.fixture
def two(bundle, tmp_path):
    """A bundle with two engines, the second of which the test may make unfit."""
    root = tmp_path / "two"
    shutil.copytree(bundle.root, root)
    copy_engine(Bundle.open(root), "onnxruntime-cpu", "onnxruntime-cpu-other")
    return Bundle.open(root)


def _unfit(bundle):
    """Let the second engine want a library that is not installed."""
    path = bundle.root / "engines" / "onnxruntime-cpu-other" / "engine.json"
    path.write_text(path.read_text().replace('"library":"onnxruntime"', '"library":"nowhere"'))


def test_all_engines_that_run_here_by_default(two):
    chosen = choose_engines(two, (), "torch")
    assert list(chosen.engines) == ["onnxruntime-cpu", "onnxruntime-cpu-other"]
    assert chosen.engines["onnxruntime-cpu-other"].plan.startswith("engines/")
    assert not chosen.notes


def test_an_engine_that_does_not_run_here_is_a_note(two):
    _unfit(two)
    chosen = choose_engines(two, (), "torch")
    assert list(chosen.engines) == ["onnxruntime-cpu"]
    (note,) = chosen.notes
    assert note == (
        "onnxruntime-cpu-other is left out: onnxruntime-cpu needs nowhere, which is not installed"
    )


def test_an_engine_that_is_named_must_run_here(two):
    _unfit(two)
    with pytest.raises(EngineError, match="needs nowhere"):
        choose_engines(two, ("onnxruntime-cpu-other",), "torch")


def test_an_engine_that_is_named_must_be_there(two):
    with pytest.raises(BundleError, match="openvino-cpu"):
        choose_engines(two, ("openvino-cpu",), "torch")


def test_nothing_that_runs_here_is_an_error_with_the_reasons(two):
    _unfit(two)
    shutil.rmtree(two.root / "engines" / "onnxruntime-cpu")
    with pytest.raises(EngineError, match="needs nowhere"):
        choose_engines(two, (), "torch")


def test_nothing_built_is_an_error(two):
    shutil.rmtree(two.root / "engines")
    with pytest.raises(BundleError, match="holds no engine to compare with torch"):
        choose_engines(two, (), "torch")


def test_the_reference_is_not_compared_with_itself(two):
    chosen = choose_engines(two, (), "onnxruntime-cpu-other")
    assert list(chosen.engines) == ["onnxruntime-cpu"]
    with pytest.raises(UsageError, match="compared with itself"):
        choose_engines(two, ("onnxruntime-cpu",), "onnxruntime-cpu")


def test_one_engine_by_two_names_is_compared_once(two):
    shutil.rmtree(two.root / "engines" / "onnxruntime-cpu")
    names = ("onnxruntime-cpu", "onnxruntime-cpu-other")
    assert list(choose_engines(two, names, "torch").engines) == ["onnxruntime-cpu-other"]


def test_an_engine_whose_record_is_damaged_is_a_note(two):
    (two.root / "engines" / "onnxruntime-cpu-other" / "engine.json").write_text("{")
    chosen = choose_engines(two, (), "torch")
    assert list(chosen.engines) == ["onnxruntime-cpu"]
    assert "not valid JSON" in chosen.notes[0]


def test_an_engine_of_another_manifest_is_a_note(two):
    reseal(two.root)
    opened = Bundle.open(two.root)
    stale = two.root / "engines" / "onnxruntime-cpu-other" / "engine.json"
    stale.write_text(stale.read_text().replace(opened.manifest_sha256, "0" * 64))
    chosen = choose_engines(opened, (), "torch")
    assert list(chosen.engines) == ["onnxruntime-cpu"]
    assert "another bundle" in chosen.notes[0]


@pytest.mark.parametrize(("wanted", "against"), [(["abacus"], "torch"), ([], "abacus")])
def test_what_nobody_knows_is_a_usage_error(two, wanted, against):
    with pytest.raises(UsageError, match="no target is called 'abacus': choose one of"):
        choose_engines(two, wanted, against)
