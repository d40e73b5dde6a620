import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.export.passes.repeat_layer import RepeatLayer, layers_to_trace

SIZE = 3


def layers(count: int, period: int = 1) -> ir.Model:
    """Build a chain of layers ``h * weight + past``, each handing out what it added up.

    All layers share the bias, made outside, and a shape, computed in the first of them. Every
    ``period``-th takes the bias itself, the others what is made of it.
    """
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
        hidden = node(f"layers.{i}.Add_1", "Add", shaped, local if i % period else bias)
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


def names(model: ir.Model) -> dict[str, list[str | None]]:
    return {
        "inputs": [value.name for value in model.graph.inputs],
        "outputs": [value.name for value in model.graph.outputs],
        "initializers": list(model.graph.initializers),
        "nodes": [node.name for node in model.graph],
    }


def run(model: ir.Model, count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {str(v.name): rng.random((2, SIZE), np.float32) for v in model.graph.inputs}
    for name, value in model.graph.initializers.items():
        value.const_value = ir.tensor(rng.random((2, SIZE), np.float32), name=name)
    assert len(model.graph.initializers) == count
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    outputs: list[np.ndarray] = ort.InferenceSession(proto.SerializeToString()).run(None, arrays)
    return outputs


@pytest.mark.parametrize("count", [3, 4, 12])
def test_equals_a_network_that_was_deep_from_the_start(count):
    repeated, deep = layers(2), layers(count)
    assert RepeatLayer(count)(repeated).modified
    assert names(repeated) == names(deep)
    for ours, theirs in zip(run(repeated, count), run(deep, count), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("count", "period"), [(7, 3), (10, 3), (5, 2), (22, 3)])
def test_repeats_several_layers(count, period):
    repeated, deep = layers(layers_to_trace(count, period), period), layers(count, period)
    assert RepeatLayer(count, period)(repeated).modified
    assert names(repeated) == names(deep)
    for ours, theirs in zip(run(repeated, count), run(deep, count), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("count", "period", "traced"),
    [
        (1, 1, 1),
        (2, 1, 2),
        (32, 1, 2),
        (22, 3, 4),
        (28, 3, 4),
        (4, 3, 4),
        (3, 3, 3),
        (6, 3, 6),
        (23, 3, 23),
    ],
)
def test_how_many_layers_to_trace(count, period, traced):
    assert layers_to_trace(count, period) == traced


def test_leaves_a_network_alone_that_does_not_divide_into_periods():
    model = layers(6, 3)
    before = names(model)
    assert not RepeatLayer(6, 3)(model).modified
    assert names(model) == before


@pytest.mark.parametrize("count", [1, 2])
def test_leaves_shallow_networks_alone(count):
    model = layers(count)
    before = names(model)
    assert not RepeatLayer(count)(model).modified
    assert names(model) == before


def test_copies_have_types_and_shapes():
    model = layers(2)
    RepeatLayer(4)(model)
    made = [value for node in model.graph for value in node.outputs]
    made += [*model.graph.inputs, *model.graph.initializers.values()]
    assert all(value.dtype is not None and value.shape is not None for value in made)


def test_copies_have_types_of_their_own():
    model = layers(2)
    RepeatLayer(4)(model)
    model.graph.initializers["layers.1.weight"].dtype = ir.DataType.BFLOAT16
    assert model.graph.initializers["layers.2.weight"].dtype == ir.DataType.FLOAT


def test_copies_have_the_attributes_of_the_original():
    model = layers(2)
    node = next(node for node in model.graph if node.name == "layers.1.Reshape")
    node.attributes["allowzero"] = ir.AttrInt64("allowzero", 1)
    RepeatLayer(3)(model)
    copy = next(node for node in model.graph if node.name == "layers.2.Reshape")
    assert copy.attributes.get_int("allowzero") == 1


def test_refuses_a_layer_that_hands_on_two_tensors():
    model = layers(2)
    inner = next(node for node in model.graph if node.name == "layers.1.Mul").outputs[0]
    final = next(node for node in model.graph if node.name == "final.Mul")
    final.replace_input_with(1, inner)
    with pytest.raises(ir.passes.PreconditionError, match="hands on"):
        RepeatLayer(3)(model)


def test_refuses_a_layer_that_changes_the_shape():
    model = layers(2)
    next(n for n in model.graph if n.name == "layers.1.Add_1").outputs[0].shape = ir.Shape(["n", 9])
    with pytest.raises(ir.passes.PreconditionError, match="turns"):
        RepeatLayer(3)(model)
