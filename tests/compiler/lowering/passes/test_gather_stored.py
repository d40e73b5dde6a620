import numpy as np
import onnx_ir as ir
import pytest
from graphs import feeds, run

from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.passes.gather_stored import GatherStored


@pytest.fixture(params=["sdar", "llada"])
def model(request) -> ir.Model:
    return ir.load(request.getfixturevalue(request.param).root / "denoiser.onnx")


def lookup(model: ir.Model) -> ir.Node:
    (node,) = [n for n in model.graph if str(n.name).startswith("embed") and n.op_type == "Gather"]
    return node


def test_the_table_is_read_as_it_is_stored(model):
    inputs = feeds(model)
    before = run(model, inputs)
    assert GatherStored()(model).modified
    CheckTypes(ir.DataType.FLOAT)(model)
    table = lookup(model).inputs[0]
    assert table is not None
    assert table.is_initializer()
    assert table.dtype == ir.DataType.BFLOAT16
    after = run(model, inputs)
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values, err_msg=name)
    assert not GatherStored()(model).modified


def test_the_cast_stays_where_something_else_reads_it(model):
    """A head tied to the embedding still multiplies with the widened table."""
    table = lookup(model).inputs[0]
    assert table is not None
    head = ir.node("Identity", [table], name="head")
    model.graph.append(head)
    model.graph.outputs.append(head.outputs[0])
    GatherStored()(model)
    assert head.inputs[0] is table
    assert table.producer() in list(model.graph)


def test_a_table_that_is_stored_as_it_is_read_needs_nothing():
    table = ir.Value(name="table", const_value=ir.tensor(np.ones((3, 2), np.float32)))
    ids = ir.Value(name="ids", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([4]))
    node = ir.node("Gather", [table, ids], name="gather")
    graph = ir.Graph(
        [ids], node.outputs, nodes=[node], initializers=[table], opset_imports={"": 23}, name="g"
    )
    assert not GatherStored()(ir.Model(graph, ir_version=10)).modified
