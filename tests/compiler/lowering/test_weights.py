import onnx_ir as ir
import pytest

from dlmc.lowering.weights import add_initializer, remove_unread, weight_of


@pytest.fixture
def graph() -> ir.Graph:
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (float[2] x, int64[2] ids) => (float[2] y)
        <bfloat16[2] stored = {1, 2}, float[2] plain = {3, 4}, int64[1] number = {1}>
        {
            cast = Cast<to=1>(stored)
            sum = Add(x, cast)
            floats = Cast<to=1>(ids)
            total = Add(sum, floats)
            y = Mul(total, plain)
        }
        """
    )
    return model.graph


def value(graph: ir.Graph, name: str) -> ir.Value:
    made = {str(one.name): one for node in graph for one in node.outputs}
    return {**made, **graph.initializers, **{str(one.name): one for one in graph.inputs}}[name]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("stored", "stored"),
        ("cast", "stored"),
        ("plain", "plain"),
        ("number", None),
        ("x", None),
        ("floats", None),
        ("sum", None),
    ],
)
def test_the_weight_behind_a_value(graph, name, found):
    weight = weight_of(value(graph, name))
    assert (None if weight is None else weight.name) == found


def test_nothing_has_no_weight():
    assert weight_of(None) is None


def test_an_initializer_has_the_type_and_shape_of_its_tensor(graph):
    made = add_initializer(graph, ir.tensor([[1, 2]], name="new"))
    assert graph.initializers["new"] is made
    assert (made.dtype, made.shape) == (ir.DataType.INT64, ir.Shape([1, 2]))


def test_what_nothing_reads_is_removed_with_its_cast(graph):
    user = value(graph, "sum").producer()
    assert user is not None
    user.replace_input_with(1, value(graph, "plain"))
    remove_unread(graph)
    assert "stored" not in graph.initializers
    assert [node.op_type for node in graph] == ["Add", "Cast", "Add", "Mul"]


def test_what_is_read_stays(graph):
    del graph.initializers["number"]
    before = list(graph), dict(graph.initializers)
    remove_unread(graph)
    assert (list(graph), dict(graph.initializers)) == before
