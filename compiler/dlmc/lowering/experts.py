"""The experts of a graph: nodes that mix them, the weights they read, and the routers."""

from collections.abc import Iterator

import onnx_ir as ir

from dlmc.denoiser.config import MIXTURE
from dlmc.lowering.streamed import Streamed
from dlmc.lowering.weights import weight_of

GATE_UP, DOWN = 2, 3
"""Inputs of a mixture that are weights, [E,2I,hidden] and [E,hidden,I]."""

_SHARES = 1


def mixtures(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes that mix experts."""
    for node in graph:
        if (node.domain, node.op_type) == MIXTURE:
            yield node


def source_of(node: ir.Node, index: int) -> ir.TensorProtocol:
    """Return a weight of a mixture as the bundle stores it, before any conversion."""
    weight = weight_of(node.inputs[index])
    tensor = None if weight is None else weight.const_value
    if tensor is None:
        raise ir.passes.PassError(f"{node.name} reads no stored weight")
    return tensor.source if isinstance(tensor, Streamed) else tensor


def routers(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes that say what a token gives each expert.

    From each mixture back to the product with the router's weight, and on to what that product
    reads while it is but scaled: a choice among experts must not hang on a rounding.
    """
    found: set[ir.Node] = set()
    stack = [value for node in mixtures(graph) if (value := node.inputs[_SHARES]) is not None]
    while stack:
        node = stack.pop().producer()
        if node is None or node in found or node.op_type in ("Cast", "Shape"):
            continue
        found.add(node)
        if node.op_type == "MatMul":
            found |= set(_scalings(node.inputs[0]))
        else:
            stack += [value for value in node.inputs if value is not None]
    return found


def _scalings(value: ir.Value | None) -> Iterator[ir.Node]:
    """Yield the products, one after the other, that a value is made of."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Mul":
        yield node
        makers = [v.producer() for v in node.inputs if v is not None and weight_of(v) is None]
        node = next((maker for maker in makers if maker is not None), None)
