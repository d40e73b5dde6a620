"""Round what the layers' linear maps multiply to 8 bits, with scales known beforehand."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from dlmc.lowering.linear import linears
from dlmc.lowering.quantize import smallest
from dlmc.lowering.weights import add_initializer

_LARGEST = 127


class QuantizeActivations(ir.passes.InPlacePass):
    """Puts ``QuantizeLinear`` and ``DequantizeLinear`` in front of every linear map.

    One scale a tensor, symmetric. Maps that read the same value share the pair.

    Args:
        magnitudes: by name of the ``MatMul``, what magnitude becomes the largest integer.
    """

    def __init__(self, magnitudes: Mapping[str, float]) -> None:
        super().__init__()
        self._magnitudes = magnitudes

    def requires(self, model: ir.Model) -> None:
        """Every linear map has a finite magnitude."""
        for linear in linears(model.graph):
            found = self._magnitudes.get(str(linear.product.name), np.nan)
            if not np.isfinite(found):
                raise ir.passes.PreconditionError(f"no magnitude for {linear.product.name}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Round the values of every linear map."""
        graph = model.graph
        found = list(linears(graph))
        zero = ir.tensor(np.int8(0), name="activation.zero_point")
        made: dict[ir.Value, ir.Value] = {}
        for linear in found:
            value = linear.values
            if value not in made:
                magnitude = self._magnitudes[str(linear.product.name)]
                point = graph.initializers.get(str(zero.name)) or add_initializer(graph, zero)
                made[value] = _round(graph, linear.product, value, magnitude, point)
            linear.product.replace_input_with(0, made[value])
        return ir.passes.PassResult(model, bool(found))


def _round(
    graph: ir.Graph, reader: ir.Node, value: ir.Value, magnitude: float, zero: ir.Value
) -> ir.Value:
    """Insert the pair before ``reader`` and return what comes out of it."""
    if value.dtype is None:
        raise ir.passes.PassError(f"{value.name} has no type")
    scale = max(np.float32(magnitude) / _LARGEST, smallest(value.dtype))
    number = np.asarray(scale, value.dtype.numpy())
    scales = add_initializer(
        graph, ir.Tensor(number, dtype=value.dtype, name=f"{value.name}.scale")
    )
    stages = (("QuantizeLinear", ir.DataType.INT8), ("DequantizeLinear", value.dtype))
    for op_type, dtype in stages:
        name = f"{value.name}.{op_type}"
        node = ir.node(op_type, [value, scales, zero], name=name)
        (made,) = node.outputs
        made.name, made.type, made.shape = f"{name}.0", ir.TensorType(dtype), value.shape
        graph.insert_before(reader, node)
        value = made
    return value
