"""Round what the layers' linear maps multiply to 8 bits, with scales known beforehand."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from dlmc.lowering.linear import Linear, linears
from dlmc.lowering.quantize import smallest
from dlmc.lowering.weights import add_initializer

_LARGEST = 127


class QuantizeActivations(ir.passes.InPlacePass):
    """Puts ``QuantizeLinear`` and ``DequantizeLinear`` in front of linear maps.

    One scale a tensor, symmetric. Maps that read the same value share the pair. A map that reads a
    product (the last of a gated MLP) is left alone: single values of it are so large that one scale
    for all rounds the others away. On the tiny checkpoints that was a third to a half of the error.

    Args:
        magnitudes: by name of the ``MatMul``, what magnitude becomes the largest integer.
    """

    def __init__(self, magnitudes: Mapping[str, float]) -> None:
        super().__init__()
        self._magnitudes = magnitudes

    def requires(self, model: ir.Model) -> None:
        """Every map to be rounded for has a finite magnitude."""
        for linear in _rounded(model.graph):
            found = self._magnitudes.get(str(linear.product.name), np.nan)
            if not np.isfinite(found):
                raise ir.passes.PreconditionError(f"no magnitude for {linear.product.name}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Round what the maps read."""
        graph = model.graph
        found = list(_rounded(graph))
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


def _rounded(graph: ir.Graph) -> Iterator[Linear]:
    for linear in linears(graph):
        maker = linear.values.producer()
        if maker is None or maker.op_type != "Mul":
            yield linear


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
