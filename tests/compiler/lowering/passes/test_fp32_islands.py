import onnx_ir as ir
import pytest

from dlmc.lowering.passes.fp32_islands import fp32_islands, head_nodes

GRAPH = """
<ir_version: 10, opset_import: ["" : 23]>
main (int64[B,T] input_ids, int64[B,T] position_ids, int64[B,R] head_rows, float[B] temperature,
      float[B,R] uniform, float[B,1,1] guidance, int64[B] partner)
      => (float[B,R,V] logits, float[B,R] drawn, float[B,T,D] "present.0.key")
<float[1,1] table = {0}, float[1] scale = {0}, float[1] frequency = {0}, float[1,1] weight = {0},
 int64[1] sizes = {0}>
{
    [size] batch = Shape(uniform)
    [embed] hidden = Gather(table, input_ids)
    [floats] positions = Cast<to=1>(position_ids)
    [angles] angles = Mul(positions, frequency)
    [cos] cos = Cos(angles)
    [sin] sin = Sin(angles)
    [norm] normed = RMSNormalization(hidden, scale)
    [proj] projected = MatMul(normed, weight)
    [heads] split = Reshape(projected, batch)
    [half] half = Slice(split, sizes, sizes)
    [neg] negated = Neg(half)
    [turn] turned = Concat<axis=-1>(negated, half)
    [left] left = Mul(split, cos)
    [right] right = Mul(turned, sin)
    [key] "present.0.key" = Add(left, right)
    [cat] keys = Concat<axis=1>("present.0.key", hidden)
    [attention] mixed = Attention(keys, keys, keys)
    [flat] flat = Reshape(mixed, batch)
    [residual] sum = Add(hidden, flat)
    [final] last = RMSNormalization(sum, scale)
    [rows] asked = GatherElements<axis=1>(last, head_rows)
    [tied] vocabulary = Transpose(table)
    [logits] logits = MatMul(asked, vocabulary)
    [other] unguided = Gather<axis=0>(logits, partner)
    [gap] gap = Sub(logits, unguided)
    [wide] scale3 = Squeeze(guidance)
    [push] push = Mul(scale3, gap)
    [guide] guided = Add(logits, push)
    [cool] cooled = Div(guided, temperature)
    [soft] probabilities = Softmax(cooled)
    [draw] drawn = Mul(probabilities, uniform)
}
"""


@pytest.fixture
def graph() -> ir.Graph:
    """A layer and a head, with element types set as a trace has them."""
    model = ir.from_onnx_text(GRAPH)
    integers = {"batch"}
    for node in model.graph:
        for value in node.outputs:
            dtype = ir.DataType.INT64 if value.name in integers else ir.DataType.FLOAT
            value.type = ir.TensorType(dtype)
    return model.graph


def names(nodes: set[ir.Node]) -> set[str]:
    return {str(node.name) for node in nodes}


def test_the_head_is_what_depends_on_its_inputs(graph):
    guidance = {"other", "gap", "wide", "push", "guide"}
    assert names(head_nodes(graph)) == {"rows", "logits", *guidance, "cool", "soft", "draw"}


def test_islands(graph):
    assert names(fp32_islands(graph)) == {
        # positions and angles, and the rotation with what only moves its operands
        *("floats", "angles", "cos", "sin", "heads", "half", "neg", "turn"),
        *("left", "right", "key"),
        # norms, and the head with the turned table
        *("norm", "final", "rows", "tied", "logits", "cool", "soft", "draw"),
        *("other", "gap", "wide", "push", "guide"),
    }


def test_layers_compute_low(graph):
    low = names(set(graph) - fp32_islands(graph))
    assert low == {"size", "embed", "proj", "cat", "attention", "flat", "residual"}


def test_what_moves_values_to_an_output_is_no_island(graph):
    key = next(node for node in graph if node.name == "heads").outputs[0]
    graph.outputs.append(key)
    assert "heads" not in names(fp32_islands(graph))


def test_what_moves_values_to_both_sides_is_no_island(graph):
    heads = next(node for node in graph if node.name == "heads").outputs[0]
    next(node for node in graph if node.name == "cat").replace_input_with(1, heads)
    assert "heads" not in names(fp32_islands(graph))


@pytest.mark.parametrize("op_type", ["Softmax", "LayerNormalization", "LogSoftmax"])
def test_norms_and_softmax_anywhere(graph, op_type):
    residual = next(node for node in graph if node.name == "residual")
    node = ir.node(op_type, [residual.outputs[0]], name="extra")
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph.append(node)
    assert "extra" in names(fp32_islands(graph))


def test_what_is_computed_from_positions_alone():
    model = ir.from_onnx_text("""
<ir_version: 10, opset_import: ["" : 23]>
main (int64[B,T] position_ids, float[B,T] hidden) => (float[B,T] scaled, float[B,T] other)
<float[1] span = {0}, float[1] one = {0}>
{
    [floats] positions = Cast<to=1>(position_ids)
    [spans] spans = Div(positions, span)
    [whole] whole = Floor(spans)
    [grown] grown = Add(whole, one)
    [log] log = Log(grown)
    [scale] scaled = Mul(log, hidden)
    [other] other = Mul(hidden, one)
}
""")
    for node in model.graph:
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    names = {node.name for node in fp32_islands(model.graph)}
    assert names == {"floats", "spans", "whole", "grown", "log"}
