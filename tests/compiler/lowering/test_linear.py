import numpy as np
import onnx_ir as ir
import pytest

from dlmc.lowering.linear import linears
from dlmc.lowering.passes.lower_precision import LowerPrecision

LAYER = [
    *(f"self_attn.{part}_proj" for part in ("q", "k", "v", "o")),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
]


@pytest.mark.parametrize("name", ["sdar", "llada"])
def test_finds_the_maps_of_the_layers_and_not_the_head(request, name):
    bundle = request.getfixturevalue(name)
    graph = ir.load(bundle.root / "denoiser.onnx").graph
    found = [linear.name for linear in linears(graph)]
    count = bundle.manifest.model.num_hidden_layers
    assert sorted(found) == sorted(
        f"layers.{layer}.{part}.weight" for layer in range(count) for part in LAYER
    )
    head = [node for node in graph if node.op_type == "MatMul"]
    assert len(head) == len(found) + 1


def test_a_lowered_graph_has_the_same_maps_and_sources(sdar):
    graph = ir.load(sdar.root / "denoiser.onnx")
    before = {linear.name: linear.source for linear in linears(graph.graph)}
    LowerPrecision(ir.DataType.FLOAT16)(graph)
    after = {linear.name: linear.source for linear in linears(graph.graph)}
    assert before == after
    assert {source.dtype for source in after.values()} == {ir.DataType.BFLOAT16}


def test_only_products_with_a_turned_matrix_count():
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (float[2,2] x, float[2,2] other) => (float[2,2] y)
        <float[2,2] w = {1,2,3,4}, float[1,2,2] deep = {1,2,3,4}>
        {
            straight = MatMul(x, w)
            turned = Transpose(other)
            values = MatMul(straight, turned)
            stack = Transpose<perm=[0,2,1]>(deep)
            third = MatMul(values, stack)
            right = Transpose<perm=[1,0]>(w)
            y = MatMul(third, right)
        }
        """
    )
    (found,) = linears(model.graph)
    assert (found.product.outputs[0].name, found.values.name) == ("y", "third")
    np.testing.assert_array_equal(found.source.numpy(), [[1, 2], [3, 4]])
