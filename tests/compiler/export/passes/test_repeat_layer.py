from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.export.passes.repeat_layer import RepeatLayer, kinds_to_trace

SIZE = 3


def layers(kinds: Sequence[str]) -> ir.Model:
    """Build a chain of layers ``h * weight + past``, each handing out what it added up.

    All layers share the bias, made outside, and a shape, computed in the first of them. Global
    ones take the bias itself, local ones what is made of it.
    """
    count = len(kinds)
    floats = ir.TensorType(ir.DataType.FLOAT)

    def value(name: str) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(["n", SIZE]), type=floats)

    first, last = value("x"), value("scale")
    past = [value(f"past_key_values.{i}.{part}") for i in range(count) for part in ("key", "value")]
    weights = [value(f"layers.{i}.weight") for i in range(count)]
    nodes: list[ir.Node] = []

    def node(name: str, op_type: str, *inputs: ir.Value, output: str = "") -> ir.Value:
        made = ir.node(op_type, list(inputs), name=name)
        made.outputs[0].name = output or f"{name}.0"
        made.outputs[0].type, made.outputs[0].shape = floats, ir.Shape(["n", SIZE])
        nodes.append(made)
        return made.outputs[0]

    hidden, bias, present = first, node("bias.Abs", "Abs", first), []
    local = node("bias.Neg", "Neg", bias)
    shape = node("layers.0.Shape", "Shape", first)
    shape.type, shape.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([2])
    for i in range(count):
        scaled = node(f"layers.{i}.Mul", "Mul", hidden, weights[i])
        kept = node(f"layers.{i}.Add", "Add", scaled, past[2 * i], output=f"present.{i}.key")
        other = node(f"layers.{i}.Sub", "Sub", bias, past[2 * i + 1], output=f"present.{i}.value")
        shaped = node(f"layers.{i}.Reshape", "Reshape", kept, shape)
        hidden = node(f"layers.{i}.Add_1", "Add", shaped, bias if kinds[i] == "global" else local)
        present += [kept, other]
    result = node("final.Mul", "Mul", hidden, last, output="y")
    graph = ir.Graph(
        [first, *past, last],
        [result, *present],
        nodes=nodes,
        initializers=weights,
        opset_imports={"": 23},
        name="chain",
    )
    return ir.Model(graph, ir_version=10)


def names(model: ir.Model) -> dict[str, Sequence[str | None]]:
    return {
        "inputs": [value.name for value in model.graph.inputs],
        "outputs": [value.name for value in model.graph.outputs],
        "initializers": sorted(map(str, model.graph.initializers)),
        "nodes": [node.name for node in model.graph],
    }


def run(model: ir.Model, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {str(v.name): rng.random((2, SIZE), np.float32) for v in model.graph.inputs}
    for name, value in sorted(model.graph.initializers.items()):
        value.const_value = ir.tensor(rng.random((2, SIZE), np.float32), name=name)
    assert len(model.graph.initializers) == count
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    outputs: list[np.ndarray] = ort.InferenceSession(proto.SerializeToString()).run(None, arrays)
    return outputs


def pattern(letters: str) -> tuple[str, ...]:
    return tuple({"g": "global", "l": "local"}[letter] for letter in letters)


@pytest.mark.parametrize(
    "letters", ["ggg", "gggggggggggg", "gllgllg", "llllgl", "lggl", "glglglg", "llg", "lg", "g"]
)
def test_equals_a_network_that_was_deep_from_the_start(letters):
    kinds = pattern(letters)
    traced = kinds_to_trace(kinds)
    repeated, deep = layers(traced), layers(kinds)
    assert RepeatLayer(kinds)(repeated).modified == (traced != kinds)
    assert names(repeated) == names(deep)
    for ours, theirs in zip(run(repeated, len(kinds)), run(deep, len(kinds)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("letters", "traced"),
    [("g", "g"), ("gg", "gg"), ("ggggg", "gg"), ("gllgll", "glg"), ("lllg", "llg"), ("lg", "lg")],
)
def test_which_layers_to_trace(letters, traced):
    assert kinds_to_trace(pattern(letters)) == pattern(traced)
