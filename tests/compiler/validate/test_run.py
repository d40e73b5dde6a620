import json
from pathlib import Path

import pytest

from dlmc.validate import run
from dlmc.validate.run import validate_bundle
from dlmc_runtime.errors import BundleError, EngineError


def test_a_sound_engine_passes_and_leaves_its_report(bundle):
    report = validate_bundle(bundle.root, "onnxruntime-cpu", max_new_tokens=8)
    assert report.ok
    assert report.prompts == 2
    assert report.forwards > report.prompts
    assert report.rows[-1].output == "generation"
    saved = json.loads((bundle.root / "validation" / "onnxruntime-cpu.json").read_text())
    assert saved["ok"] is True
    assert [row["output"] for row in saved["rows"]] == [row.output for row in report.rows]


def test_generations_that_part_are_named():
    row = run._generations([((1, 2), (1, 2)), ((1, 2, 3), (1, 5, 3))])
    assert (row.ok, row.difference, row.where) == (False, 1.0, "prompt 1, token 1: 2, not 5")


def test_generations_of_other_lengths_are_named():
    row = run._generations([((1, 2), (1, 2, 3))])
    assert (row.ok, row.where) == (False, "prompt 0, token 2: no token, not 3")


def test_a_folder_that_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match="no bundle manifest found"):
        validate_bundle(tmp_path / "nothing", "onnxruntime-cpu")


def test_a_report_that_cannot_be_written_is_one_error(bundle, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(EngineError, match="No space left on device"):
        validate_bundle(bundle.root, "onnxruntime-cpu", max_new_tokens=2)
