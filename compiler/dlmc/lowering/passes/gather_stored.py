"""Look embeddings up in the type they are stored in."""

import onnx_ir as ir

from dlmc.lowering.weights import remove_unread


class GatherStored(ir.passes.InPlacePass):
    """Turns ``Gather(Cast(weight), ids)`` into ``Cast(Gather(weight, ids))``.

    The values are the same. But an engine folds a cast of a weight when it loads, and would keep
    a widened table of which a forward reads a few rows.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Move the casts."""
        graph, modified = model.graph, False
        for node in list(graph):
            table = node.inputs[0] if node.op_type == "Gather" else None
            cast = table.producer() if table is not None else None
            if cast is None or cast.op_type != "Cast" or not _is_stored(cast.inputs[0]):
                continue
            _move(graph, node, cast)
            modified = True
        remove_unread(graph)
        return ir.passes.PassResult(model, modified)


def _is_stored(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer()


def _move(graph: ir.Graph, gather: ir.Node, cast: ir.Node) -> None:
    stored, rows = cast.inputs[0], gather.outputs[0]
    gather.replace_input_with(0, stored)
    users, wanted = list(rows.uses()), cast.attributes["to"].as_int()
    node = ir.node("Cast", [rows], attributes={"to": wanted}, name=f"{gather.name}.Cast")
    (wide,) = node.outputs
    wide.name, wide.type, wide.shape = f"{rows.name}.Cast", rows.type, rows.shape
    rows.type = ir.TensorType(stored.dtype) if stored is not None and stored.dtype else None
    graph.insert_after(gather, node)
    for user, index in users:
        user.replace_input_with(index, wide)
