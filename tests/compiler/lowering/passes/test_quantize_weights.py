import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.lowering.linear import linears
from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.passes.lower_precision import LowerPrecision
from dlmc.lowering.passes.quantize_weights import QuantizeWeights
from dlmc.lowering.streamed import Streamed

RNG = np.random.default_rng(0)


def single(count: int, length: int) -> tuple[ir.Model, np.ndarray]:
    """One linear map [length] to [count], and its weight."""
    weight = RNG.standard_normal((count, length)).astype(np.float32)
    values = ir.Value(
        name="x", shape=ir.Shape(["n", length]), type=ir.TensorType(ir.DataType.FLOAT)
    )
    tensor = ir.tensor(weight, name="w")
    w = ir.Value(
        name="w",
        shape=ir.Shape(weight.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=tensor,
    )
    turn = ir.node("Transpose", [w], attributes={"perm": [1, 0]}, name="turn")
    product = ir.node("MatMul", [values, turn.outputs[0]], name="product")
    turn.outputs[0].name, product.outputs[0].name = "turned", "y"
    for node, shape in ((turn, (length, count)), (product, ("n", count))):
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].shape = ir.Shape(shape)
    graph = ir.Graph(
        [values],
        product.outputs,
        nodes=[turn, product],
        initializers=[w],
        opset_imports={"": 23},
        name="main",
    )
    return ir.Model(graph, ir_version=10), weight


def answer(model: ir.Model, values: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    found: np.ndarray = session.run(None, {"x": values})[0]
    return found


@pytest.mark.parametrize(("count", "length"), [(1, 64), (5, 64), (7, 48), (3, 20), (4, 7)])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_product_is_that_of_the_rounded_weight(bits, count, length):
    model, weight = single(count, length)
    assert QuantizeWeights(bits, 32)(model).modified
    values = RNG.standard_normal((3, length)).astype(np.float32)
    dequantize = next(node for node in model.graph if node.op_type == "DequantizeLinear")
    integers, scales = (value.const_value.numpy() for value in dequantize.inputs)  # type: ignore[union-attr]
    block = dequantize.attributes.get_int("block_size", 0)
    wide = np.repeat(scales, block, 1) if block else scales[:, None]
    rounded = integers.astype(np.float32) * wide
    assert np.abs(rounded - weight).max() <= 0.51 * scales.max()
    np.testing.assert_allclose(answer(model, values), values @ rounded.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("bits", "length", "dtype", "attributes"),
    [
        (8, 64, ir.DataType.INT8, {"axis": 0}),
        (4, 64, ir.DataType.INT4, {"axis": 1, "block_size": 32}),
        (4, 48, ir.DataType.INT4, {"axis": 1, "block_size": 16}),
        (4, 20, ir.DataType.INT8, {"axis": 0}),
    ],
)
def test_the_form_engines_read(bits, length, dtype, attributes):
    model, _ = single(3, length)
    QuantizeWeights(bits, 32)(model)
    dequantize, turn, product = model.graph
    assert [dequantize.op_type, turn.op_type, product.op_type] == [
        *("DequantizeLinear", "Transpose", "MatMul")
    ]
    assert dequantize.inputs[0] is not None
    assert dequantize.inputs[0].dtype == dtype
    assert dequantize.inputs[0].shape == ir.Shape((3, length))
    assert {n: a.value for n, a in dequantize.attributes.items()} == attributes
    assert "w" not in model.graph.initializers


@pytest.mark.parametrize("precision", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
@pytest.mark.parametrize("bits", [8, 4])
def test_every_map_of_the_layers_and_nothing_else(sdar, bits, precision):
    model = ir.load(sdar.root / "denoiser.onnx")
    names = [linear.name for linear in linears(model.graph)]
    LowerPrecision(precision)(model)
    QuantizeWeights(bits, 32)(model)
    CheckTypes(precision)(model)
    found = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    assert [node.name for node in found] == [f"{name}.DequantizeLinear" for name in names]
    for node in found:
        scale = node.inputs[1]
        assert scale is not None
        assert scale.dtype == precision
        assert node.outputs[0].dtype == precision
    # The scales came from the stored weight, not from a copy in the graph's precision.
    sources = {
        value.const_value.source.dtype
        for value in model.graph.initializers.values()
        if isinstance(value.const_value, Streamed)
    }
    assert sources == {ir.DataType.BFLOAT16}
    assert {"embed_tokens.weight", "lm_head.weight"} <= {
        str(name).removesuffix(".float16") for name in model.graph.initializers
    }


def test_no_converted_weight_is_left_behind(sdar):
    model = ir.load(sdar.root / "denoiser.onnx")
    LowerPrecision(ir.DataType.FLOAT16)(model)
    QuantizeWeights(8, 32)(model)
    names = [name for name in model.graph.initializers if "_proj" in name]
    assert {name.rsplit(".", 1)[1] for name in names} == {"int8", "scale"}


def test_a_graph_without_linear_maps_is_left_alone():
    model, _ = single(3, 16)
    model.graph[0].op_type = "Identity"
    assert not QuantizeWeights(8, 32)(model).modified
