"""Refuse a lowered graph whose types do not fit together."""

import onnx
import onnx_ir as ir

from dlmc.lowering.streamed import Streamed

_CACHE = ("past_key_values.", "present.")


class CheckTypes(ir.passes.InPlacePass):
    """Changes nothing; fails where ONNX's own inference finds another type than a value has.

    Args:
        cache: type of the cache inputs and outputs.
    """

    def __init__(self, cache: ir.DataType) -> None:
        super().__init__()
        self._cache = cache

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Infer all types and shapes, without reading a weight."""
        for value in (*model.graph.inputs, *model.graph.outputs):
            if str(value.name).startswith(_CACHE) and value.dtype != self._cache:
                raise ir.passes.PassError(f"{value.name} is {value.dtype}, not {self._cache}")
        try:
            onnx.shape_inference.infer_shapes(
                _without_values(model), check_type=True, strict_mode=True
            )
        except onnx.shape_inference.InferenceError as error:
            raise ir.passes.PassError(f"the graph's types do not fit: {error}") from error
        return ir.passes.PassResult(model, modified=False)


def _without_values(model: ir.Model) -> onnx.ModelProto:
    """Return the graph with streamed tensors as references to nothing, so that none is made."""
    twin = model.clone()
    for value in twin.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, Streamed):
            value.const_value = ir.ExternalTensor(
                "unwritten",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=tensor.shape,
                name=str(value.name),
            )
    return ir.to_proto(twin)
