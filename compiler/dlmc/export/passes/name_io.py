"""Give the graph's inputs and outputs the names, types and dimensions of the bundle format."""

from collections.abc import Sequence

import onnx_ir as ir

from dlmc_runtime.manifest import TensorSpec


class NameIo(ir.passes.InPlacePass):
    """Renames inputs and outputs by position.

    Args:
        inputs: what the inputs must be, in order.
        outputs: what the outputs must be, in order.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        super().__init__()
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    def requires(self, model: ir.Model) -> None:
        """The graph has as many inputs and outputs, of the same types and sizes."""
        for kind, values, specs in self._pairs(model):
            if len(values) != len(specs):
                raise ir.passes.PreconditionError(
                    f"the graph has {len(values)} {kind}, not {len(specs)}"
                )
            for value, spec in zip(values, specs, strict=True):
                problem = _mismatch(value, spec)
                if problem:
                    raise ir.passes.PreconditionError(f"{kind} {spec.name}: {problem}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rename and set dimensions."""
        modified = False
        for _, values, specs in self._pairs(model):
            for value, spec in zip(values, specs, strict=True):
                shape = ir.Shape(spec.shape)
                modified |= value.name != spec.name or value.shape != shape
                value.name, value.shape = spec.name, shape
        return ir.passes.PassResult(model, modified)

    def ensures(self, model: ir.Model) -> None:
        """All names are distinct: no value is both an input and an output."""
        names = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
        if names != [spec.name for spec in (*self._inputs, *self._outputs)]:
            raise ir.passes.PostconditionError(f"the graph's inputs and outputs are {names}")

    def _pairs(
        self, model: ir.Model
    ) -> tuple[tuple[str, Sequence[ir.Value], tuple[TensorSpec, ...]], ...]:
        return (
            ("inputs", model.graph.inputs, self._inputs),
            ("outputs", model.graph.outputs, self._outputs),
        )


def _mismatch(value: ir.Value, spec: TensorSpec) -> str:
    """Return, in words, what differs beyond names; empty where nothing does."""
    dtype = ir.DataType[{"float32": "FLOAT"}.get(spec.dtype, spec.dtype.upper())]
    if value.dtype != dtype:
        return f"type {value.dtype}, not {dtype}"
    if value.shape is None or len(value.shape) != len(spec.shape):
        return f"shape {value.shape}, not {spec.shape}"
    for ours, theirs in zip(spec.shape, value.shape, strict=True):
        if isinstance(theirs, int) and ours != theirs:
            return f"shape {value.shape}, not {spec.shape}"
    return ""
