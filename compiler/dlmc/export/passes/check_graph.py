"""Refuse a graph that some target could not read."""

from collections.abc import Collection, Sequence

import onnx_ir as ir

from dlmc_runtime.manifest import TensorSpec

# What TensorRT refuses, or what hides a shape that depends on data.
_FORBIDDEN = frozenset(
    {"If", "Loop", "Scan", "NonZero", "SplitToSequence", "SequenceAt", "SequenceConstruct"}
)


class CheckGraph(ir.passes.InPlacePass):
    """Changes nothing; fails where the graph is not plain ONNX of one opset.

    That is: only the default domain and ``domains``, no functions of other domains, no control flow
    and sequences, no attention with more than one output, and no initializer that nothing uses.

    Args:
        inputs: what the inputs must be called, in order.
        outputs: what the outputs must be called, in order.
        domains: operator sets that the graph may use besides ONNX's own.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        domains: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._io = [spec.name for spec in (*inputs, *outputs)]
        self._domains = {"", *domains}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Look at every node."""
        io = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
        problem = f"has the inputs and outputs {io}"
        if io == self._io:
            problem = _problem(model, self._domains)
        if problem:
            raise ir.passes.PassError(f"the graph {problem}")
        return ir.passes.PassResult(model, modified=False)


def _problem(model: ir.Model, allowed: Collection[str]) -> str:
    """Return, as a predicate, the first thing that is wrong; empty where nothing is."""
    odd = [key for key in model.functions if key[0] not in allowed]
    if odd:
        return f"has functions: {sorted(map(str, odd))}"
    domains = sorted(model.opset_imports.keys() - allowed)
    if domains:
        return f"imports the operator sets {domains}"
    bodies = (node for function in model.functions.values() for node in function)
    for node in (*model.graph, *bodies):
        if node.domain not in allowed or node.op_type in _FORBIDDEN:
            return f"has the operator {node.domain}::{node.op_type} ({node.name})"
        if node.op_type == "Attention" and len(node.outputs) != 1:
            return f"has an attention with {len(node.outputs)} outputs ({node.name})"
    unused = [name for name, value in model.graph.initializers.items() if not value.uses()]
    return f"does not use {unused[0]}" if unused else ""
