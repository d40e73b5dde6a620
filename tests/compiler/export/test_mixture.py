"""The function that mixes experts, run by ONNX Runtime and by the reference of ONNX."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from dlmc.denoiser.config import MIXTURE
from dlmc.denoiser.moe import mix
from dlmc.export.mixture import OPSET
from dlmc.export.passes.check_graph import CheckGraph
from dlmc.export.passes.define_mixture import DefineMixture

EXPERTS, HIDDEN, WIDTH = 6, 8, 5
SHAPES = {
    "x": (2, 3, HIDDEN),
    "weights": (2, 3, EXPERTS),
    "gate_up": (EXPERTS, 2 * WIDTH, HIDDEN),
    "down": (EXPERTS, HIDDEN, WIDTH),
}


def calling(*activations: str) -> ir.Model:
    """Return a graph that mixes what the mixture before has mixed."""
    inputs = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        for name, shape in SHAPES.items()
    ]
    nodes, x = [], inputs[0]
    for index, activation in enumerate(activations):
        node = ir.node(
            MIXTURE[1],
            [x, *inputs[1:]],
            domain=MIXTURE[0],
            attributes={"activation": activation, "k": 2},
            name=f"layers.{index}.MoE",
        )
        nodes.append(node)
        x = node.outputs[0]
        x.name, x.type, x.shape = f"y{index}", inputs[0].type, inputs[0].shape
    graph = ir.Graph(inputs, [x], nodes=nodes, opset_imports={"": OPSET, MIXTURE[0]: 1}, name="g")
    return ir.Model(graph, ir_version=10)


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    found["weights"] = np.abs(found["weights"]) * (rng.random((2, 3, EXPERTS)) < 0.4)
    return {name: array.astype(np.float32) for name, array in found.items()}


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_body_is_what_torch_computes(activation: str):
    model = calling(activation, activation)
    DefineMixture()(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    given = feeds()
    session = ort.InferenceSession(proto.SerializeToString())
    x, rest = torch.tensor(given["x"]), [torch.tensor(given[name]) for name in list(SHAPES)[1:]]
    for _ in range(2):
        x = mix(x, *rest, activation, 2)
    np.testing.assert_allclose(session.run(None, given)[0], x, atol=1e-4, rtol=1e-4)


def test_one_function_for_all_nodes():
    model = calling("silu", "silu")
    assert DefineMixture()(model).modified
    assert list(model.functions) == [(*MIXTURE, "")]
    function = model.functions[(*MIXTURE, "")]
    assert function.attributes["activation"].as_string() == "silu"
    assert {node.domain for node in function} == {""}


def test_a_graph_without_experts_gets_none():
    model = calling()
    assert not DefineMixture()(model).modified
    assert not model.functions
    assert MIXTURE[0] not in model.opset_imports


def test_experts_of_two_activations():
    with pytest.raises(ir.passes.PreconditionError, match="experts have"):
        DefineMixture()(calling("silu", "gelu_tanh"))


def test_functions_are_allowed_with_their_domain_only():
    model = calling("silu")
    DefineMixture()(model)
    specs: list[Any] = [type("Spec", (), {"name": name}) for name in (*SHAPES, "y0")]
    CheckGraph(specs[:4], specs[4:], {MIXTURE[0]})(model)
    with pytest.raises(ir.passes.PassError, match=r"has functions: .*MoE"):
        CheckGraph(specs[:4], specs[4:])(model)
