"""Give the graph the function that mixes experts."""

import onnx_ir as ir

from dlmc.denoiser.config import MIXTURE
from dlmc.export.mixture import mixture_function


class DefineMixture(ir.passes.InPlacePass):
    """Adds the function that nodes `MIXTURE` call, if there are any, with a body for their experts.

    Engines inline it, or put a kernel of their own in the place of its nodes.
    """

    def requires(self, model: ir.Model) -> None:
        """All nodes have one activation: the function has one body."""
        if len(_activations(model.graph)) > 1:
            raise ir.passes.PreconditionError(f"experts have {_activations(model.graph)}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Add the function."""
        for activation in _activations(model.graph):
            function = mixture_function(activation)
            model.functions[function.identifier()] = function
            return ir.passes.PassResult(model, modified=True)
        model.opset_imports.pop(MIXTURE[0], None)
        return ir.passes.PassResult(model, modified=False)


def _activations(graph: ir.Graph) -> set[str]:
    nodes = [node for node in graph if (node.domain, node.op_type) == MIXTURE]
    return {node.attributes["activation"].as_string() for node in nodes}
