from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.passes.fp32_islands import fp32_islands
from dlmc.lowering.passes.lower_precision import LowerPrecision
from dlmc.lowering.streamed import Streamed

BF16, FP16, FP32 = ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT
LOW = pytest.mark.parametrize("dtype", [FP16, BF16])


@pytest.fixture(params=["sdar", "llada"])
def model(request) -> ir.Model:
    """The graph of a bundle whose weights are stored in bfloat16."""
    return ir.load(request.getfixturevalue(request.param).root / "denoiser.onnx")


def lower(model: ir.Model, dtype: ir.DataType) -> ir.Model:
    assert LowerPrecision(dtype)(model).modified
    return model


def makers(model: ir.Model) -> dict[str, ir.Node]:
    return {str(node.name): node for node in model.graph}


@LOW
def test_types_fit_and_names_stay(model, dtype):
    graph = model.graph
    before = [value.name for value in (*graph.inputs, *graph.outputs)]
    CheckTypes(dtype)(lower(model, dtype))
    assert [value.name for value in (*graph.inputs, *graph.outputs)] == before


@LOW
def test_nodes_compute_in_float32_exactly_on_islands(model, dtype):
    islands = {node.name for node in fp32_islands(model.graph)}
    names = {node.name for node in model.graph}
    lower(model, dtype)
    for node in model.graph:
        types = {value.dtype for value in node.outputs} & {FP32, dtype}
        if node.name in names and node.op_type != "Cast" and types:
            assert types == {FP32 if node.name in islands else dtype}, node.name


@LOW
def test_products_and_attention_are_low_norms_and_head_are_not(model, dtype):
    lower(model, dtype)
    found = Counter((n.op_type, n.outputs[0].dtype) for n in model.graph)
    assert found["MatMul", dtype] == 7 * 6
    assert found["MatMul", FP32] == 1
    assert found["Attention", dtype] == 6
    assert found["RMSNormalization", dtype] == 0
    assert found["TopK", FP32] == 1


@LOW
def test_guidance_is_computed_in_float32(guided, dtype):
    graph = lower(ir.load(guided.root / "denoiser.onnx"), dtype).graph
    found, values = set(), [v for v in graph.inputs if v.name in ("guidance", "partner")]
    while values:
        for use in values.pop().uses():
            if use.node.op_type != "Shape" and use.node not in found:
                found.add(use.node)
                values += use.node.outputs
    assert {"Gather", "Sub", "Mul", "Add", "TopK", "Exp"} <= {node.op_type for node in found}
    for node in found:
        assert dtype not in {v.dtype for v in (*node.inputs, *node.outputs) if v is not None}


@LOW
def test_attention_has_no_softmax_precision(model, dtype):
    """TensorRT refuses the attribute."""
    lower(model, dtype)
    nodes = [node for node in model.graph if node.op_type == "Attention"]
    assert not any("softmax_precision" in node.attributes for node in nodes)


@LOW
def test_no_value_is_cast_twice_or_back_and_forth(model, dtype):
    lower(model, dtype)
    casts = [node for node in model.graph if node.op_type == "Cast"]
    assert max(Counter((c.inputs[0], c.outputs[0].dtype) for c in casts).values()) == 1
    for cast in casts:
        maker = cast.inputs[0].producer() if cast.inputs[0] is not None else None
        assert maker is None or maker.op_type != "Cast", cast.name


@LOW
def test_sizes_are_taken_without_a_cast(model, dtype):
    lower(model, dtype)
    sources = [node.inputs[0] for node in model.graph if node.op_type == "Shape"]
    assert sources
    assert all(value in model.graph.inputs for value in sources)


def test_weights_of_the_graphs_type_are_read_as_they_are(model):
    before = dict(model.graph.initializers)
    lower(model, BF16)
    weights = {n: v for n, v in model.graph.initializers.items() if n.startswith("layers.")}
    assert all(before[name].const_value is value.const_value for name, value in weights.items())
    turned = [n.inputs[0] for n in model.graph if n.op_type == "Transpose"]
    assert sum(value in weights.values() for value in turned) == 7 * 6


def test_weights_of_another_type_are_streamed_and_read_once(model):
    lower(model, FP16)
    streamed = [v for v in model.graph.initializers.values() if isinstance(v.const_value, Streamed)]
    assert len(streamed) == 7 * 6 + 1  # and the embedding table
    assert {value.dtype for value in streamed} == {FP16}


@LOW
def test_norm_weights_stay_as_stored_behind_a_cast(model, dtype):
    lower(model, dtype)
    for node in model.graph:
        if node.op_type == "RMSNormalization":
            cast = node.inputs[1].producer() if node.inputs[1] is not None else None
            assert cast is not None
            assert cast.op_type == "Cast"
            assert cast.inputs[0] is not None
            assert cast.inputs[0].dtype == BF16


def test_refuses_a_graph_that_was_lowered_already(model):
    lower(model, BF16)
    with pytest.raises(ir.passes.PreconditionError, match="already"):
        LowerPrecision(BF16)(model)


SMALL = """
<ir_version: 10, opset_import: ["" : 23]>
main (float[n,2] "past_key_values.0.key", int64[n] ids)
    => (float[n,2] "present.0.key", float[n,2] y)
<float[2,2] table = {1.5, 2.00390625, 3.25, 4.125}, float[2] scale = {2, 3},
 float[2] shift = {0.1, 0.2}>
{
    rows = Gather(table, ids)
    sum = Add(rows, "past_key_values.0.key")
    shifted = Add(sum, shift)
    normed = RMSNormalization(shifted, scale)
    y = Softmax(normed)
    "present.0.key" = Mul(shifted, shift)
}
"""


def small() -> ir.Model:
    model = ir.from_onnx_text(SMALL)
    for node in model.graph:
        for value in node.outputs:
            value.type = ir.TensorType(FP32)
            value.shape = ir.Shape(["n", 2])
    return model


def test_a_low_output_that_an_island_makes_keeps_its_name(sdar):
    model = lower(ir.load(sdar.root / "denoiser.onnx"), BF16)
    value = next(value for value in model.graph.outputs if value.name == "present.0.key")
    cast = value.producer()
    assert cast is not None
    assert (cast.op_type, value.dtype) == ("Cast", BF16)
    readers = {use.node.op_type for use in value.uses()}
    assert readers == {"Concat"}


def test_the_lowered_graph_computes_what_numpy_computes_in_float16():
    model = small()
    lower(model, FP16)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    past, ids = np.array([[0.1, -7.3], [1e-3, 2.5]], np.float16), np.array([1, 0])
    session = ort.InferenceSession(proto.SerializeToString())
    present, answer = session.run(None, {"past_key_values.0.key": past, "ids": ids})
    table = np.array([[1.5, 2.00390625], [3.25, 4.125]], np.float16)
    shift = np.array([0.1, 0.2], np.float16)
    shifted = table[ids] + past + shift
    np.testing.assert_allclose(present, shifted * shift, rtol=2e-3)
    wide = shifted.astype(np.float32)
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * [2, 3]
    expected = np.exp(normed) / np.exp(normed).sum(-1, keepdims=True)
    assert (present.dtype, answer.dtype) == (np.float16, np.float32)
    np.testing.assert_allclose(answer, expected, rtol=2e-3)


def test_a_constant_in_the_graph_stays_in_the_graph():
    model = small()
    lower(model, BF16)
    shift = model.graph.initializers["shift.bfloat16"].const_value
    assert isinstance(shift, ir.Tensor)
    np.testing.assert_array_equal(shift.numpy(), np.array([0.1, 0.2], ml_dtypes.bfloat16))
    assert "shift" not in model.graph.initializers


def test_an_output_that_no_island_makes_is_refused():
    model = small()
    model.graph[-2].op_type = "Abs"
    with pytest.raises(ir.passes.PostconditionError, match="y is BFLOAT16"):
        LowerPrecision(BF16)(model)
