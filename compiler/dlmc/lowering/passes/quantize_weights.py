"""Store the weights of the layers' linear maps as integers, in plain ONNX."""

import onnx_ir as ir

from dlmc.lowering.linear import Linear, linears
from dlmc.lowering.quantize import fitting, integers_of, scales_of
from dlmc.lowering.weights import add_initializer, remove_unread


class QuantizeWeights(ir.passes.InPlacePass):
    """Puts ``DequantizeLinear`` between the integers of a weight and its ``Transpose``.

    The integers keep the checkpoint's layout [out, in], so they are written as they are read, and
    blocks lie along the input axis. Embeddings and the head stay as they are.

    Args:
        bits: 8, a scale a row; or 4, a scale a block.
        block: values that share a scale with 4 bits; see `fitting` for rows it does not divide.
    """

    def __init__(self, bits: int, block: int) -> None:
        super().__init__()
        self._bits, self._block = bits, block

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Quantize the weight of every linear map."""
        found = list(linears(model.graph))
        for linear in found:
            self._quantize(model.graph, linear)
        remove_unread(model.graph)
        return ir.passes.PassResult(model, bool(found))

    def _quantize(self, graph: ir.Graph, linear: Linear) -> None:
        value = linear.turn.inputs[0]
        if value is None or value.dtype is None:
            raise ir.passes.PassError(f"{linear.turn.name} has no input of a known type")
        scheme = fitting(self._bits, self._block, linear.source, value.dtype)
        name = linear.name
        integers = integers_of(linear.source, scheme, f"{name}.int{scheme.bits}")
        inputs = [
            add_initializer(graph, integers),
            add_initializer(graph, scales_of(linear.source, scheme, f"{name}.scale")),
        ]
        attributes = {"axis": 1, "block_size": scheme.block} if scheme.block else {"axis": 0}
        node = ir.node(
            "DequantizeLinear", inputs, attributes=attributes, name=f"{name}.DequantizeLinear"
        )
        (made,) = node.outputs
        made.name, made.type, made.shape = f"{name}.0", ir.TensorType(value.dtype), value.shape
        graph.insert_before(linear.turn, node)
        linear.turn.replace_input_with(0, made)
