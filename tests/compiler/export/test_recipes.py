"""Every recipe can be planned from its own configuration, and its graph exported."""

import os
from pathlib import Path

import onnx
import pytest
import torch

from dlmc.export.pipeline import ExportOptions, export_checkpoint, plan_export
from dlmc.recipes import list_recipes, load
from dlmc_runtime.manifest import parse_manifest


def networks() -> list[str]:
    """Return one recipe for each network: one per family, or, if asked for, one per size."""
    sizes = bool(os.environ.get("DLMC_EVERY_SIZE"))
    found = {(r.family, r.parameters if sizes else 0): name for name, r in _released()}
    return sorted(found.values())


def _released():
    for name in reversed(list_recipes()):
        if not name.startswith("tiny/"):
            yield name, load(name)


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_alone_can_be_planned(name: str, tmp_path: Path):
    recipe = load(name)
    options = ExportOptions(None, tmp_path / "bundle", recipe=name, weights=False)
    plan = plan_export(options)
    assert plan.spec.family == recipe.family
    assert plan.parameters == recipe.parameters
    assert plan.profiles == recipe.profiles
    assert not plan.warnings
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", networks())
def test_the_graph_of_a_released_size(name: str, tmp_path: Path, monkeypatch):
    # A second trace in torch's exporter would take as long as all the rest.
    again = "run_decompositions", lambda *_: pytest.fail("it was traced again")
    monkeypatch.setattr(torch.export.ExportedProgram, *again)
    options = ExportOptions(None, tmp_path / "bundle", recipe=name, weights=False)
    export_checkpoint(options)
    manifest = parse_manifest((tmp_path / "bundle" / "manifest.json").read_bytes())
    plan = plan_export(ExportOptions(None, tmp_path / "other", recipe=name, weights=False))
    assert manifest.attention.block_length == plan.spec.block_length
    assert manifest.attention.aligned_to == plan.spec.aligned_to
    assert manifest.attention.last_block == plan.spec.last_block
    assert manifest.attention.seeded == plan.spec.seeded
    graph = onnx.load(tmp_path / "bundle" / manifest.graph, load_external_data=False).graph
    assert [value.name for value in graph.input] == [spec.name for spec in manifest.inputs]
    assert [value.name for value in graph.output] == [spec.name for spec in manifest.outputs]
    attentions = sum(node.op_type == "Attention" for node in graph.node)
    assert attentions == manifest.model.num_hidden_layers
