"""Write experts down in plain operators."""

from typing import Any

import onnx_ir as ir

from dlmc.denoiser.config import MIXTURE
from dlmc.export.mixture import mixture
from dlmc.lowering.experts import mixtures


class InlineMixture(ir.passes.InPlacePass):
    """Replaces every node that mixes experts by the operators of its function's body.

    They compute in the type of what the experts read. The function goes: TensorRT and OpenVINO do
    not read graphs that have some.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the nodes and drop the function."""
        found = list(mixtures(model.graph))
        for node in found:
            _inline(model.graph, node)
        model.functions.pop((*MIXTURE, ""), None)
        model.opset_imports.pop(MIXTURE[0], None)
        return ir.passes.PassResult(model, bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No function is left."""
        if model.functions:
            raise ir.passes.PostconditionError(f"has functions: {list(model.functions)}")


def _inline(graph: ir.Graph, node: ir.Node) -> None:
    (result,) = node.outputs
    stem, count = str(node.name), 0

    def emit(op: str, values: list[ir.Value], **attributes: Any) -> Any:
        nonlocal count
        made = ir.node(
            op,
            values,
            attributes=attributes,
            num_outputs=attributes.get("num_outputs", 1),
            name=f"{stem}.{op}_{count}",
        )
        count += 1
        integers = op in ("Shape", "Constant")
        for index, value in enumerate(made.outputs):
            value.name = f"{made.name}.{index}"
            value.type = ir.TensorType(ir.DataType.INT64) if integers else result.type
        graph.insert_before(node, made)
        return made.outputs[0] if len(made.outputs) == 1 else made.outputs

    inputs = tuple(value for value in node.inputs if value is not None)
    made = mixture(emit, inputs, node.attributes["activation"].as_string())
    name, made.shape = result.name, result.shape
    ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    made.name = name
