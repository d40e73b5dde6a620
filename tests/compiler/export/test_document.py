from dataclasses import replace
from importlib.metadata import version

import pytest
from pydantic import ValidationError

from dlmc.export.document import CONFIG, GRAPH, build_manifest
from dlmc.export.options import ExportOptions
from dlmc.export.plan import plan_export
from dlmc_runtime.manifest import TargetSpec
from dlmc_runtime.record import FileRecord
from dlmc_runtime.version import __version__

FILE = FileRecord(size=1, sha256="0" * 64)


@pytest.fixture
def plan(goldens, tmp_path):
    options = ExportOptions(
        source=str(goldens / "sdar"),
        output=tmp_path / "bundle",
        block_length=8,
        candidates=7,
        suppress=(3,),
        weights=False,
        tokenizer=False,
    )
    return plan_export(options)


def test_the_manifest_says_what_was_planned(plan):
    manifest = build_manifest(plan, {GRAPH: FILE, CONFIG: FILE})
    assert (manifest.family, manifest.architecture) == ("sdar", "SDARForCausalLM")
    assert (manifest.attention.regime, manifest.attention.block_length) == ("block", 8)
    assert manifest.head.candidates == 7
    assert manifest.tokens.suppressed == (3, plan.spec.mask_id)
    assert manifest.model.parameters == plan.parameters > 0
    assert manifest.model.hidden_size == plan.config["hidden_size"]
    assert manifest.profiles == plan.profiles
    assert (manifest.weights, manifest.text) == ((), None)
    assert [spec.shape[-1] for spec in manifest.outputs if spec.name == "top_ids"] == [7]


def test_the_manifest_keeps_what_the_recipe_says_of_targets(plan):
    targets = (TargetSpec(target="openvino-cpu", precision="bfloat16", device_memory=4),)
    manifest = build_manifest(replace(plan, targets=targets), {GRAPH: FILE, CONFIG: FILE})
    assert manifest.targets == targets


def test_the_manifest_names_the_versions_that_made_the_graph(plan):
    versions = build_manifest(plan, {GRAPH: FILE, CONFIG: FILE}).provenance.versions
    assert versions["dlmc"] == __version__
    assert versions["torch"] == version("torch")
    assert versions["onnx-ir"] == version("onnx-ir")


def test_a_manifest_without_its_files_is_never_made(plan):
    with pytest.raises(ValidationError, match=GRAPH):
        build_manifest(plan, {CONFIG: FILE})
