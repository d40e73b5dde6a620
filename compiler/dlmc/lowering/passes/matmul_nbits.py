"""Store the weights of the layers' linear maps as integers, for ONNX Runtime."""

import onnx_ir as ir

from dlmc.lowering.linear import Linear, linears
from dlmc.lowering.quantize import Scheme, blobs_of, scales_of
from dlmc.lowering.weights import add_initializer, remove_unread

DOMAIN = "com.microsoft"

# ONNX Runtime's kernels round what they multiply to 8 bits, a row and block at a time. Without it
# they widen the weights on every forward: with 8 bits that takes three times as long, and the
# error of a graph is that of the weights either way.
INT8_ACCURACY = 4


class MatMulNBits(ir.passes.InPlacePass):
    """Replaces ``MatMul`` and ``Transpose`` by ONNX Runtime's operator for blocks of integers.

    ONNX Runtime multiplies ``DequantizeLinear`` of a weight out when it loads, and so takes the
    memory of a float32 graph; this operator reads the integers. It has blocks with 8 bits too.

    Args:
        bits: 8 or 4.
        block: values that share a scale, a power of two of at least 16.
    """

    def __init__(self, bits: int, block: int) -> None:
        super().__init__()
        self._bits, self._block = bits, block

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace every linear map."""
        found = list(linears(model.graph))
        for linear in found:
            self._replace(model.graph, linear)
        remove_unread(model.graph)
        if found:
            model.opset_imports[DOMAIN] = 1
        return ir.passes.PassResult(model, bool(found))

    def _replace(self, graph: ir.Graph, linear: Linear) -> None:
        product, name = linear.product, linear.name
        output = product.outputs[0]
        if output.dtype is None:
            raise ir.passes.PassError(f"{output.name} has no type")
        scheme = Scheme(self._bits, self._block, output.dtype)
        count, length = linear.source.shape.numpy()
        inputs = [
            linear.values,
            add_initializer(graph, blobs_of(linear.source, scheme, f"{name}.int{self._bits}")),
            add_initializer(graph, scales_of(linear.source, scheme, f"{name}.scale")),
        ]
        attributes = {
            "K": length,
            "N": count,
            "bits": self._bits,
            "block_size": self._block,
            "accuracy_level": INT8_ACCURACY,
        }
        node = ir.node(
            "MatMulNBits", inputs, attributes=attributes, domain=DOMAIN, name=product.name
        )
        node.outputs[0].name = output.name
        node.outputs[0].type, node.outputs[0].shape = output.type, output.shape
        graph.insert_before(product, node)
        ir.convenience.replace_all_uses_with(output, node.outputs[0], replace_graph_outputs=True)
        graph.remove(product, safe=True)
