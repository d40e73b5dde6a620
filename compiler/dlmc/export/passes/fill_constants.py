"""Give traced buffers their values and take the placeholders of parameters away."""

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor


class FillConstants(ir.passes.InPlacePass):
    """Replaces the meta tensors that tracing leaves in the initializers.

    A buffer gets the value its module states; a parameter gets none, because an initializer
    without a value is one that no optimizer tries to read.

    Args:
        constants: values of the buffers, by the name of their initializer.
    """

    def __init__(self, constants: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._constants = constants

    def requires(self, model: ir.Model) -> None:
        """Every constant that the graph uses has the shape and type the trace saw."""
        for name, value in model.graph.initializers.items():
            constant = self._constants.get(name)
            if constant is not None and value.shape != ir.Shape(constant.shape):
                stated = tuple(constant.shape)
                raise ir.passes.PreconditionError(
                    f"{name} is {value.shape} in the graph, {stated} in its module"
                )

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace all placeholders."""
        modified = False
        for name, value in model.graph.initializers.items():
            if name in self._constants:
                value.const_value = ir.tensor(self._constants[name].numpy(), name=name)
            elif _is_placeholder(value):
                value.const_value = None
            else:
                continue
            modified = True
        return ir.passes.PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """No initializer holds a meta tensor."""
        for name, value in model.graph.initializers.items():
            if _is_placeholder(value):
                raise ir.passes.PostconditionError(f"{name} still has no values")


def _is_placeholder(value: ir.Value) -> bool:
    raw = getattr(value.const_value, "raw", None)
    return isinstance(raw, Tensor) and raw.is_meta
