"""The linear maps of the layers: products with a weight, outside the head."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dlmc.lowering.experts import routers
from dlmc.lowering.passes.fp32_islands import head_nodes
from dlmc.lowering.streamed import Streamed
from dlmc.lowering.weights import weight_of


@dataclass(frozen=True)
class Linear:
    """``product = values @ weight.T``, with the weight [out, in] as a checkpoint stores it.

    Attributes:
        product: the ``MatMul``.
        turn: the ``Transpose`` it reads its weight from.
        weight: the initializer, whatever cast or conversion lies between.
    """

    product: ir.Node
    turn: ir.Node
    weight: ir.Value

    @property
    def name(self) -> str:
        """Name of the weight."""
        source = self.source
        return str(source.name)

    @property
    def values(self) -> ir.Value:
        """What is multiplied, [..., in]."""
        value = self.product.inputs[0]
        if value is None:
            raise ir.passes.PassError(f"{self.product.name} has no input")
        return value

    @property
    def source(self) -> ir.TensorProtocol:
        """The weight as the bundle stores it, before any conversion."""
        tensor = self.weight.const_value
        if tensor is None:
            raise ir.passes.PassError(f"{self.weight.name} has no value")
        return tensor.source if isinstance(tensor, Streamed) else tensor


def linears(graph: ir.Graph) -> Iterator[Linear]:
    """Yield the linear maps of the layers but those of routers, in the order of the graph."""
    apart = head_nodes(graph) | routers(graph)
    for node in graph:
        if node.op_type != "MatMul" or node in apart:
            continue
        turn = node.inputs[1].producer() if node.inputs[1] is not None else None
        if turn is None or turn.op_type != "Transpose":
            continue
        weight = weight_of(turn.inputs[0])
        if weight is not None and weight.shape is not None and weight.shape.rank() == 2:
            yield Linear(node, turn, weight)
