from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from graphs import feeds, run

from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.passes.gemm_weights import GemmWeights


@pytest.fixture(params=["sdar", "llada"])
def model(request) -> ir.Model:
    return ir.load(request.getfixturevalue(request.param).root / "denoiser.onnx")


def test_answers_are_the_same(model):
    inputs = feeds(model)
    before = run(model, inputs)
    assert GemmWeights()(model).modified
    CheckTypes(ir.DataType.FLOAT)(model)
    after = run(model, inputs)
    assert before.keys() == after.keys()
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, atol=1e-5, err_msg=name)
    assert after["top_logits"].std() > 0.1


def test_no_transpose_of_a_weight_is_left_and_rows_are_made_once(model):
    before = Counter(node.op_type for node in model.graph)
    GemmWeights()(model)
    found = Counter(node.op_type for node in model.graph)
    assert found["Gemm"] == before["MatMul"] == 7 * 6 + 1
    assert found["MatMul"] == 0
    assert before["Transpose"] - found["Transpose"] == before["MatMul"]
    rows = [node for node in model.graph if str(node.name).endswith(".Rows")]
    assert len(rows) == 4 * 6 + 1  # before q, k, v; o; gate, up; down; and the head


def test_names_of_what_leaves_a_product_stay(model):
    names = {node.outputs[0].name for node in model.graph if node.op_type == "MatMul"}
    GemmWeights()(model)
    assert names <= {value.name for node in model.graph for value in node.outputs}


def test_logits_that_leave_the_graph_stay_its_output(model):
    product = [node for node in model.graph if node.op_type == "MatMul"][-1]
    model.graph.outputs.append(product.outputs[0])
    names = [value.name for value in model.graph.outputs]
    inputs = feeds(model)
    wanted = run(model, inputs)[names[-1]]
    GemmWeights()(model)
    assert [value.name for value in model.graph.outputs] == names
    np.testing.assert_allclose(run(model, inputs)[names[-1]], wanted, atol=1e-4)


def test_a_second_time_changes_nothing(model):
    GemmWeights()(model)
    assert not GemmWeights()(model).modified


def test_products_without_a_weight_are_left_alone():
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["b", 2, 3]))
    y = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([3, 3]))
    node = ir.node("MatMul", [x, y], name="product")
    graph = ir.Graph([x, y], node.outputs, nodes=[node], opset_imports={"": 23}, name="g")
    assert not GemmWeights()(ir.Model(graph, ir_version=10)).modified


def test_products_that_follow_each_other_directly():
    """An adapter is two of them, with nothing in between."""
    model = ir.from_onnx_text("""
<ir_version: 10, opset_import: ["" : 23]>
main (float[B,T,3] x) => (float[B,T,4] y)
<float[2,3] a = {1, 2, 3, 4, 5, 6}, float[4,2] b = {1, 2, 3, 4, 5, 6, 7, 8}>
{
    [turn_a] turned_a = Transpose<perm=[1,0]>(a)
    [first] low = MatMul(x, turned_a)
    [turn_b] turned_b = Transpose<perm=[1,0]>(b)
    [second] y = MatMul(low, turned_b)
}
""")
    floats = ir.TensorType(ir.DataType.FLOAT)
    for node in model.graph:
        node.outputs[0].type = floats
    next(n for n in model.graph if n.name == "first").outputs[0].shape = ir.Shape(["B", "T", 2])
    inputs = {"x": np.arange(12, dtype=np.float32).reshape(2, 2, 3)}
    a = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    b = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    assert GemmWeights()(model).modified
    assert [node.op_type for node in model.graph].count("Gemm") == 2
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    np.testing.assert_allclose(session.run(["y"], inputs)[0], inputs["x"] @ a.T @ b.T)
