import json
import shutil

import pytest

from dlmc_runtime import legal
from dlmc_runtime.preflight import ThisMachine


def test_a_bundle_at_a_glance(dlmc, bundle):
    outcome = dlmc("inspect", str(bundle))
    assert (outcome.status, outcome.err) == (0, "")
    for part in (
        "sdar (SDARForCausalLM)",
        "block, blocks of 4",
        "1.23 k",
        "4.94 kB in memory",
        "mask 9, stop [8]",
        "low_confidence_dynamic, threshold 0.9",
        "no template",
        "past_key_values.*.key",
        "[batch, block]",
        "batch 1, block 4, cache 32, rows 4",
        "cache 2.05 kB",
        "weights/model.safetensors",
        "hashes not compared (--verify)",
        "run dlmc build",
    ):
        assert part in outcome.out, part
    assert "past_key_values.1" not in outcome.out


def test_json_holds_everything(dlmc, bundle):
    report = dlmc("inspect", str(bundle), "--json").json
    assert report["model"]["parameters"] == 1234
    assert report["profiles"][0]["memory"]["cache"] == 2 * 2 * 4 * 32 * 4
    assert set(report["files"]) == {"config.json", "denoiser.onnx", "weights/model.safetensors"}
    assert report["verified"] is False
    assert report["engines"] == {}


@pytest.mark.parametrize("part", [".", "manifest.json"])
def test_a_built_engine_runs_here(dlmc, bundle, engine, part):
    report = dlmc("inspect", str(bundle / part), "--json").json
    described = report["engines"]["onnxruntime-cpu"]
    assert described["runs_here"]
    assert described["record"]["versions"] == {"onnxruntime": "1.32.0"}
    assert "runs here" in dlmc("inspect", str(bundle)).out


@pytest.mark.parametrize("part", [".", "engine.json"])
def test_an_engine_can_be_named(dlmc, engine, part):
    report = dlmc("inspect", str(engine / part), "--json").json
    assert list(report["engines"]) == ["onnxruntime-cpu"]


@pytest.mark.parametrize("path", [".", "engine.json", "../onnxruntime-cpu"])
def test_an_engine_can_be_named_from_inside(dlmc, engine, monkeypatch, path):
    monkeypatch.chdir(engine)
    assert list(dlmc("inspect", path, "--json").json["engines"]) == ["onnxruntime-cpu"]


@pytest.mark.parametrize("name", ["engine.json", "manifest.json"])
def test_a_path_without_a_folder_before_it_is_no_engine(dlmc, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine.json").touch()
    outcome = dlmc("inspect", name)
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert outcome.err.endswith("make a bundle with dlmc export\n")


def test_an_engine_of_another_target_does_not_run_here(dlmc, bundle, engine):
    other = engine.with_name("abacus")
    shutil.copytree(engine, other)
    text = (other / "engine.json").read_text().replace("onnxruntime-cpu", "abacus")
    (other / "engine.json").write_text(text)
    described = dlmc("inspect", str(bundle), "--json").json["engines"]["abacus"]
    assert described["obstacle"] == "this version of dlmc does not run abacus"


def test_a_missing_library_is_an_obstacle(dlmc, engine, monkeypatch):
    monkeypatch.setattr(ThisMachine, "library", lambda *_: None)
    described = dlmc("inspect", str(engine), "--json").json["engines"]["onnxruntime-cpu"]
    assert described["obstacle"] == (
        "onnxruntime-cpu needs onnxruntime, which is not installed: pip install dlmc"
    )


def test_an_engine_of_another_bundle_says_so(dlmc, bundle, engine):
    record = json.loads((engine / "engine.json").read_text())
    record["manifest_sha256"] = "0" * 64
    (engine / "engine.json").write_text(json.dumps(record))
    assert "was built from another bundle" in dlmc("inspect", str(bundle)).out


def test_verify_reads_every_file(dlmc, bundle):
    assert "hashes match" in dlmc("inspect", str(bundle), "--verify").out
    (bundle / "denoiser.onnx").write_bytes(b"GRAPH")
    assert dlmc("inspect", str(bundle)).status == 0
    outcome = dlmc("inspect", str(bundle), "--verify")
    assert outcome.status == 1
    assert "denoiser.onnx" in outcome.err


@pytest.mark.parametrize(
    ("path", "problem"), [("nowhere", "does not exist"), (".", "is no bundle and no engine")]
)
def test_what_is_no_bundle_is_one_sentence(dlmc, tmp_path, path, problem):
    outcome = dlmc("inspect", str(tmp_path / path))
    assert outcome.status == 1
    assert outcome.err.endswith(f"{problem}: make a bundle with dlmc export\n")


def test_what_a_bundle_can_do_is_shown(dlmc, bundle):
    report = dlmc("inspect", str(bundle), "--json").json
    regime = report["regime"]
    assert report["caches"] == list(legal.CACHES[regime])
    assert report["samplers"] == [n for n in legal.samplers_of(regime) if n != "levenshtein"]
    assert report["infill"] == ("yes" if regime == "full" else "no")
    assert report["attention"]["aligned_to"] == "sequence"
    shown = dlmc("inspect", str(bundle)).out
    assert "fills spans" in shown
    assert "caches by name" in shown
