"""Store the weights of the layers' linear maps and experts as integers, in plain ONNX."""

import onnx_ir as ir

from dlmc.lowering.experts import DOWN, GATE_UP, mixtures, source_of
from dlmc.lowering.linear import linears
from dlmc.lowering.quantize import fitting, integers_of, scales_of
from dlmc.lowering.streamed import as_rows
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
        """Quantize the weight of every linear map, and those of all experts."""
        graph = model.graph
        found, mixed = list(linears(graph)), list(mixtures(graph))
        for linear in found:
            value = self._dequantized(graph, linear.source, linear.turn.inputs[0], linear.turn)
            linear.turn.replace_input_with(0, value)
        for node in mixed:
            for index in (GATE_UP, DOWN):
                self._quantize(graph, node, index)
        remove_unread(graph)
        return ir.passes.PassResult(model, bool(found or mixed))

    def _quantize(self, graph: ir.Graph, node: ir.Node, index: int) -> None:
        """Let a mixture read quantized weights [E,out,in], which are stored as rows [E*out,in]."""
        source, value = source_of(node, index), node.inputs[index]
        flat = self._dequantized(graph, as_rows(source), value, node)
        shape = ir.tensor(source.shape.numpy(), ir.DataType.INT64, name=f"{source.name}.shape")
        back = ir.node(
            "Reshape", [flat, add_initializer(graph, shape)], name=f"{source.name}.Reshape"
        )
        (made,) = back.outputs
        made.name, made.type = f"{back.name}.0", flat.type
        made.shape = ir.Shape(source.shape.numpy())
        graph.insert_before(node, back)
        node.replace_input_with(index, made)

    def _dequantized(
        self,
        graph: ir.Graph,
        source: ir.TensorProtocol,
        value: ir.Value | None,
        before: ir.Node,
    ) -> ir.Value:
        """Return the quantized form of a weight [out,in] in the type of ``value``."""
        if value is None or value.dtype is None:
            raise ir.passes.PassError(f"{before.name} has no input of a known type")
        scheme = fitting(self._bits, self._block, source, value.dtype)
        name = source.name
        inputs = [
            add_initializer(graph, integers_of(source, scheme, f"{name}.int{scheme.bits}")),
            add_initializer(graph, scales_of(source, scheme, f"{name}.scale")),
        ]
        attributes = {"axis": 1, "block_size": scheme.block} if scheme.block else {"axis": 0}
        node = ir.node(
            "DequantizeLinear", inputs, attributes=attributes, name=f"{name}.DequantizeLinear"
        )
        (made,) = node.outputs
        made.name, made.type = f"{name}.0", ir.TensorType(value.dtype)
        made.shape = ir.Shape(source.shape.numpy())
        graph.insert_before(before, node)
        return made
