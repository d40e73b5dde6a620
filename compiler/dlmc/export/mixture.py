"""The function that mixes experts, in plain operators: exact for any routing, of static shapes."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from dlmc.denoiser.config import MIXTURE

OPSET = 23

Emit = Callable[..., Any]
"""Adds a node: operator, inputs, attributes; returns its output, or a tuple of them."""


def mixture(emit: Emit, inputs: tuple[ir.Value, ...], activation: str) -> ir.Value:
    """Add the nodes that mix experts, and return their result [B,T,hidden].

    As in `dlmc.denoiser.moe.mix`, stored weights are left factors of batched products, so that no
    engine transposes them.

    Args:
        emit: adds one node.
        inputs: x [B,T,hidden], what each token gives each expert [B,T,E], the experts' gates and
            ups [E,2I,hidden], and their downs [E,hidden,I].
        activation: ``silu`` or ``gelu_tanh``.
    """
    x, weights, gate_up, down = inputs
    tokens = emit("Transpose", [emit("Flatten", [x], axis=2)], perm=[1, 0])  # [hidden,N]
    both = emit("MatMul", [gate_up, tokens])
    gate, up = emit("Split", [both], axis=1, num_outputs=2)
    gated = emit("Mul", [_ACTIVATIONS[activation](emit, gate), up])  # [E,I,N]
    turned = emit("Transpose", [emit("Flatten", [weights], axis=2)], perm=[1, 0])
    shares = emit("Unsqueeze", [turned, _axis(emit, 1)])  # [E,1,N]
    mixed = emit("MatMul", [down, emit("Mul", [gated, shares])])
    summed = emit("ReduceSum", [mixed, _axis(emit, 0)], keepdims=0)  # [hidden,N]
    result: ir.Value = emit(
        "Reshape", [emit("Transpose", [summed], perm=[1, 0]), emit("Shape", [x])]
    )
    return result


_ACTIVATIONS: dict[str, Callable[[Emit, ir.Value], Any]] = {
    "silu": lambda emit, x: emit("Mul", [x, emit("Sigmoid", [x])]),
    "gelu_tanh": lambda emit, x: emit("Gelu", [x], approximate="tanh"),
}


def _axis(emit: Emit, axis: int) -> Any:
    return emit("Constant", [], value_ints=[axis])


def mixture_function(activation: str) -> ir.Function:
    """Return the function that a graph holds for its nodes `MIXTURE`.

    Its attributes state what the body does: a target that has a kernel of its own reads them.
    """
    nodes: list[ir.Node] = []

    def emit(op: str, values: list[ir.Value], **attributes: Any) -> Any:
        count = attributes.get("num_outputs", 1)
        node = ir.node(op, values, attributes=attributes, num_outputs=count)
        node.name = f"{op}_{len(nodes)}"
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}.{index}"
        nodes.append(node)
        return node.outputs[0] if count == 1 else node.outputs

    inputs = tuple(ir.Value(name=name) for name in ("x", "weights", "gate_up", "down"))
    result = mixture(emit, inputs, activation)
    domain, name = MIXTURE
    graph = ir.Graph(inputs, [result], nodes=nodes, opset_imports={"": OPSET}, name=name)
    attributes = [
        ir.Attr("activation", ir.AttributeType.STRING, activation),
        ir.Attr("k", ir.AttributeType.INT, 1),
    ]
    return ir.Function(domain, name, graph=graph, attributes=attributes)
