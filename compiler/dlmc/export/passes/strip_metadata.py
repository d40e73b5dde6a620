"""Remove what the exporter notes about its own run."""

from collections.abc import Iterator

import onnx_ir as ir


class StripMetadata(ir.passes.InPlacePass):
    """Clears documentation strings and metadata of the model, its graph, nodes and values.

    The exporter records stack traces there, and with them the paths of the machine it ran on.
    The pass of the same purpose in onnx-ir leaves values and the model alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Clear everything."""
        modified = False
        for part in _parts(model):
            modified |= bool(part.metadata_props) or bool(part.doc_string)
            part.metadata_props.clear()
            part.doc_string = None
        return ir.passes.PassResult(model, modified)


def _parts(model: ir.Model) -> Iterator[ir.Model | ir.Graph | ir.Function | ir.Node | ir.Value]:
    yield model
    yield from _graph_parts(model.graph)
    for function in model.functions.values():
        yield from _graph_parts(function)


def _graph_parts(
    root: ir.Graph | ir.Function,
) -> Iterator[ir.Graph | ir.Function | ir.Node | ir.Value]:
    graphs = {root}
    for node in ir.traversal.RecursiveGraphIterator(root):
        if node.graph is not None:
            graphs.add(node.graph)
        yield node
        yield from node.outputs
    for graph in graphs:
        yield graph
        yield from graph.inputs
        if isinstance(graph, ir.Graph):
            yield from graph.initializers.values()
