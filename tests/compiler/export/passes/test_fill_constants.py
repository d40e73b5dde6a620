import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx_ir.tensor_adapters import TorchTensor

from dlmc.export.passes.fill_constants import FillConstants


def placeholder(name: str, *shape: int) -> ir.Value:
    tensor = TorchTensor(torch.empty(shape, device="meta"), name=name)
    return ir.Value(
        name=name, shape=ir.Shape(shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )


@pytest.fixture
def model() -> ir.Model:
    values = [placeholder("rope.inv_freq", 3), placeholder("norm.weight", 4)]
    folded = ir.tensor(np.arange(2), name="folded")
    values.append(
        ir.Value(
            name="folded",
            shape=ir.Shape([2]),
            type=ir.TensorType(ir.DataType.INT64),
            const_value=folded,
        )
    )
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 23}, name="g")
    return ir.Model(graph, ir_version=10)


CONSTANTS = {"rope.inv_freq": torch.tensor([1.0, 0.5, 0.25])}


def test_buffers_get_their_values(model):
    assert FillConstants(CONSTANTS)(model).modified
    filled = model.graph.initializers["rope.inv_freq"].const_value
    np.testing.assert_array_equal(filled.numpy(), [1.0, 0.5, 0.25])
    assert filled.name == "rope.inv_freq"


def test_parameters_lose_their_placeholder(model):
    FillConstants(CONSTANTS)(model)
    assert model.graph.initializers["norm.weight"].const_value is None


def test_real_values_stay(model):
    FillConstants(CONSTANTS)(model)
    np.testing.assert_array_equal(model.graph.initializers["folded"].const_value.numpy(), [0, 1])


def test_constants_the_graph_does_not_use_are_no_error(model):
    FillConstants({**CONSTANTS, "unused": torch.zeros(1)})(model)


def test_nothing_to_do_is_no_modification(model):
    for name in ("rope.inv_freq", "norm.weight"):
        del model.graph.initializers[name]
    assert not FillConstants({})(model).modified


def test_refuses_a_constant_of_another_shape(model):
    with pytest.raises(ir.passes.PreconditionError, match=r"rope\.inv_freq is .*3.* \(5,\) in its"):
        FillConstants({"rope.inv_freq": torch.zeros(5)})(model)
    assert model.graph.initializers["norm.weight"].const_value is not None


def test_a_buffer_nobody_states_becomes_a_parameter(model):
    """It then has no weight either, and `AttachWeights` names it."""
    FillConstants({})(model)
    assert model.graph.initializers["rope.inv_freq"].const_value is None
