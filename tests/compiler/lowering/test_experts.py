"""Graphs with experts, lowered in every way, against the graph that they were lowered from."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.checkpoint.random_weights import random_weights
from dlmc.checkpoint.safetensors_writer import write_safetensors
from dlmc.denoiser.config import MIXTURE
from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.families.llada2 import LLADA2
from dlmc.lowering.experts import mixtures, routers
from dlmc.lowering.linear import linears
from dlmc.lowering.lower import Lowering, calls_functions, lower
from dlmc.synth import Blueprint, Scale
from dlmc_runtime.bundle import Bundle

ROWS, LENGTH = 2, 16


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, goldens: Path) -> Bundle:
    """Random weights in bfloat16: a dense layer and two with 16 experts of which 4 are used."""
    folder = tmp_path_factory.mktemp("experts")
    config = json.loads((goldens / "llada2" / "config.json").read_text())
    config |= {"moe_intermediate_size": 32, "eos_token_id": 311, "mask_token_id": 316}
    source = folder / "checkpoint"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    tensors = Blueprint.of(LLADA2, config, {}, Scale()).tensors("bfloat16")
    write_safetensors(source / "model.safetensors", tensors, random_weights(0))
    options = ExportOptions(
        str(source), folder / "bundle", tokenizer=False, block_length=8, variant="logits"
    )
    export_checkpoint(options)
    return Bundle.open(folder / "bundle")


def feeds(bundle: Bundle) -> dict[str, Any]:
    model, rng = bundle.manifest.model, np.random.default_rng(0)
    empty = np.zeros((ROWS, model.num_key_value_heads, 0, model.head_dim), np.float32)
    positions = np.tile(np.arange(LENGTH), (ROWS, 1))
    return {
        "input_ids": rng.integers(0, 300, (ROWS, LENGTH)),
        "position_ids": positions,
        "attention_mask": np.ones((ROWS, 1, LENGTH, LENGTH), bool),
        "head_rows": positions,
        "temperature": np.zeros(ROWS, np.float32),
        "uniform": np.zeros((ROWS, LENGTH), np.float32),
        **{s.name: empty for s in bundle.manifest.inputs if s.name.startswith("past")},
    }


def logits(graph: Path, given: dict[str, Any]) -> Any:
    session = ort.InferenceSession(str(graph))
    halves = {arg.name for arg in session.get_inputs() if arg.type == "tensor(float16)"}
    given = {n: a.astype(np.float16) if n in halves else a for n, a in given.items()}
    return session.run(["logits"], given)[0]


@pytest.fixture(scope="module")
def reference(bundle: Bundle) -> Any:
    return logits(bundle.root / bundle.manifest.graph, feeds(bundle))


def load(bundle: Bundle) -> ir.Model:
    return ir.load(bundle.root / bundle.manifest.graph)


def test_what_a_bundle_holds(bundle: Bundle):
    model = load(bundle)
    assert calls_functions(bundle.root / bundle.manifest.graph)
    assert [node.name for node in mixtures(model.graph)] == [
        f"layers.{i}.mlp.experts.MoE" for i in (1, 2)
    ]


def test_routers_are_no_linear_maps(bundle: Bundle):
    graph = load(bundle).graph
    found = {linear.name for linear in linears(graph)}
    assert "layers.1.mlp.shared_experts.up_proj.weight" in found
    assert not [name for name in found if "gate.weight" in name]
    apart = {str(node.name) for node in routers(graph)}
    assert "layers.1.mlp.gate.MatMul" in apart
    assert all(".mlp.gate." in n for n in apart if n.startswith("layers."))


EVERY = [
    (Lowering(), 1e-5, {"MoE": 0}),
    (Lowering(form="onnxruntime"), 1e-5, {"MoE": 0, "Gemm": 18}),
    (Lowering(form="onnxruntime", native_experts=True), 1e-5, {"MoE": 2}),
    (Lowering(quantization="int8"), 0.04, {"DequantizeLinear": 19}),
    (Lowering(quantization="int4", block_size=16), 0.15, {"DequantizeLinear": 19}),
    (
        Lowering(quantization="int8", form="onnxruntime", native_experts=True),
        0.04,
        {"QMoE": 2, "MatMulNBits": 15},
    ),
    (
        Lowering(quantization="int4", form="onnxruntime", native_experts=True),
        0.15,
        {"QMoE": 2, "MatMulNBits": 15},
    ),
    (Lowering("float16"), 2e-3, {"MoE": 0}),
]


@pytest.mark.parametrize(("how", "atol", "operators"), EVERY)
def test_lowered_graphs(
    bundle: Bundle,
    reference: Any,
    tmp_path: Path,
    how: Lowering,
    atol: float,
    operators: dict[str, int],
):
    made = lower(bundle, how, tmp_path)
    model = ir.load(tmp_path / made.graph)
    assert not model.functions
    assert MIXTURE[0] not in model.opset_imports
    counts = Counter(node.op_type for node in model.graph)
    assert {name: counts[name] for name in operators} == operators
    np.testing.assert_allclose(logits(tmp_path / made.graph, feeds(bundle)), reference, atol=atol)


def test_routers_stay_in_float32(bundle: Bundle, tmp_path: Path):
    made = lower(bundle, Lowering("bfloat16"), tmp_path)
    graph = ir.load(tmp_path / made.graph).graph
    types = {str(node.name): node.outputs[0].dtype for node in graph}
    low, full = ir.DataType.BFLOAT16, ir.DataType.FLOAT
    assert types["layers.1.mlp.gate.MatMul"] == types["layers.1.mlp.gate.Where"] == full
    inside = {n for n in types if ".mlp.gate." in n and not n.endswith(".bfloat16.Cast")}
    assert low not in {types[n] for n in inside}
    assert {types[n] for n in types if ".experts.MoE.M" in n} == {low}


def test_openvino_reads_what_was_lowered(bundle: Bundle, reference: Any, tmp_path: Path):
    openvino = pytest.importorskip("openvino")
    made = lower(bundle, Lowering(), tmp_path)
    compiled = openvino.Core().compile_model(
        str(tmp_path / made.graph), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    np.testing.assert_allclose(compiled(feeds(bundle))["logits"], reference, atol=1e-4)
