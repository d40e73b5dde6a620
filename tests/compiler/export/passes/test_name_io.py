import onnx_ir as ir
import pytest

from dlmc.export.passes.name_io import NameIo
from dlmc_runtime.manifest import TensorSpec

INPUTS = (
    TensorSpec(name="input_ids", dtype="int64", shape=("batch", "block")),
    TensorSpec(name="cache", dtype="float32", shape=("batch", 2, "cache")),
)
OUTPUTS = (TensorSpec(name="present", dtype="float32", shape=("batch", 2, "context")),)


@pytest.fixture
def model() -> ir.Model:
    return ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (int64[s0,s1] a, float[s0,2,s2] b) => (float[s0,2,s3] y)
        {
            y = Neg(b)
        }
        """
    )


def test_renames_by_position_and_sets_dimensions(model):
    assert NameIo(INPUTS, OUTPUTS)(model).modified
    names = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
    assert names == ["input_ids", "cache", "present"]
    assert model.graph.inputs[1].shape == ir.Shape(["batch", 2, "cache"])
    assert model.graph.outputs[0].shape == ir.Shape(["batch", 2, "context"])


def test_nodes_follow(model):
    NameIo(INPUTS, OUTPUTS)(model)
    node = model.graph[0]
    assert (node.inputs[0].name, node.outputs[0].name) == ("cache", "present")


def test_a_second_run_changes_nothing(model):
    NameIo(INPUTS, OUTPUTS)(model)
    assert not NameIo(INPUTS, OUTPUTS)(model).modified


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (INPUTS[:1], OUTPUTS, "2 inputs, not 1"),
        (INPUTS, OUTPUTS * 2, "1 outputs, not 2"),
        ((INPUTS[1], INPUTS[0]), OUTPUTS, "inputs cache: type INT64, not FLOAT"),
        (
            (INPUTS[0], TensorSpec(name="cache", dtype="float32", shape=("batch", 3, "cache"))),
            OUTPUTS,
            "inputs cache: shape .*2.*, not .*3",
        ),
        (
            (TensorSpec(name="input_ids", dtype="int64", shape=("batch",)), INPUTS[1]),
            OUTPUTS,
            "inputs input_ids: shape",
        ),
        (
            INPUTS,
            (TensorSpec(name="present", dtype="bool", shape=("batch", 2, "context")),),
            "outputs present: type FLOAT, not BOOL",
        ),
    ],
)
def test_refuses_what_differs_beyond_names(model, inputs, outputs, words):
    with pytest.raises(ir.passes.PreconditionError, match=words):
        NameIo(inputs, outputs)(model)
    assert model.graph.inputs[0].name == "a"


def test_refuses_a_constant_where_a_dimension_must_be_free():
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (int64[1,s1] a, float[s0,2,s2] b) => (float[s0,2,s3] y) { y = Neg(b) }
        """
    )
    with pytest.raises(ir.passes.PreconditionError, match="input_ids: shape"):
        NameIo(INPUTS, OUTPUTS)(model)


def test_an_input_handed_out_as_output_is_noticed():
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (int64[s0,s1] a, float[s0,2,s2] b) => (float[s0,2,s2] b) { c = Neg(b) }
        """
    )
    with pytest.raises(ir.passes.PostconditionError, match="inputs and outputs are"):
        NameIo(INPUTS, OUTPUTS)(model)
