"""Point parameters at the checkpoint's own bytes."""

from collections.abc import Mapping

import onnx_ir as ir


class AttachWeights(ir.passes.InPlacePass):
    """Gives every parameter the external tensor that holds it.

    Where the stored type is not the graph's (a bf16 checkpoint in an fp32 graph), the initializer
    keeps the stored type and one ``Cast``, shared by all uses, follows it; engines fold it at
    load. No byte of any weight is read.

    Args:
        weights: external tensor of each parameter, by the name of its initializer.
    """

    def __init__(self, weights: Mapping[str, ir.ExternalTensor]) -> None:
        super().__init__()
        self._weights = weights

    def requires(self, model: ir.Model) -> None:
        """Parameters and weights are the same set, of the same shapes."""
        parameters = {n: v for n, v in model.graph.initializers.items() if v.const_value is None}
        odd = parameters.keys() ^ self._weights.keys()
        if odd:
            raise ir.passes.PreconditionError(f"no parameter or no weight for {sorted(odd)}")
        for name, value in parameters.items():
            stored = self._weights[name].shape
            if value.shape != stored:
                raise ir.passes.PreconditionError(f"{name} is {value.shape}, its weight {stored}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Attach all weights."""
        for name, weight in self._weights.items():
            value = model.graph.initializers[name]
            if value.dtype is not None and value.dtype != weight.dtype:
                _cast(model.graph, value, value.dtype)
                # A new type, because setting the old one's dtype would change all who share it.
                value.type = ir.TensorType(weight.dtype)
            value.const_value = weight
        return ir.passes.PassResult(model, modified=bool(self._weights))

    def ensures(self, model: ir.Model) -> None:
        """Every initializer has a value of its own type."""
        for name, value in model.graph.initializers.items():
            if value.const_value is None or value.const_value.dtype != value.dtype:
                raise ir.passes.PostconditionError(f"{name} has no value of type {value.dtype}")


def _cast(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> None:
    """Let all users of ``value`` read a cast of it to ``dtype``."""
    users = list(value.uses())
    node = ir.node("Cast", [value], attributes={"to": dtype}, name=f"{value.name}.Cast")
    (cast,) = node.outputs
    cast.name, cast.dtype, cast.shape = f"{value.name}.Cast.0", dtype, value.shape
    for user, index in users:
        user.replace_input_with(index, cast)
    graph.insert_before(graph[0], node)
