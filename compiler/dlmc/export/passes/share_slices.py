"""Read a part of a weight where it lies, instead of cutting it out of the whole."""

import numpy as np
import onnx_ir as ir


class ShareSlices(ir.passes.InPlacePass):
    """Turns a ``Slice`` of rows of a weight into an initializer that reads those bytes.

    Rows lie behind one another in a file, so a range of them is a tensor of its own. Engines that
    fold a ``Slice`` of a weight when they load would keep a copy of all of it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the slices of external weights, and of casts of them."""
        graph, modified = model.graph, False
        for node in list(graph):
            found = _rows(node)
            if found is None:
                continue
            _read(graph, node, _part(graph, *found))
            modified = True
        return ir.passes.PassResult(model, modified)


def _rows(node: ir.Node) -> tuple[ir.Value, ir.ExternalTensor, int, int] | None:
    """Return the weight that ``node`` cuts rows out of, and which."""
    if node.op_type != "Slice" or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    cast = source.producer()
    weight = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else source
    tensor = weight.const_value if weight is not None else None
    bounds = [_constant(value) for value in node.inputs[1:]]
    if weight is None or not isinstance(tensor, ir.ExternalTensor) or None in bounds:
        return None
    start, stop, axis, step = (*bounds, 0, 1)[:4] if len(bounds) == 2 else (*bounds, 1)[:4]
    if (axis, step) != (0, 1) or start is None or stop is None:
        return None
    start, stop, _ = slice(start, stop).indices(int(tensor.shape.numpy()[0]))
    return weight, tensor, start, stop


def _constant(value: ir.Value | None) -> int | None:
    if value is None or value.const_value is None:
        return None
    numbers = np.atleast_1d(value.const_value.numpy())
    return int(numbers[0]) if numbers.size == 1 else None


def _part(
    graph: ir.Graph, weight: ir.Value, tensor: ir.ExternalTensor, start: int, stop: int
) -> ir.Value:
    """Return the initializer of those rows; there is one, however often they are read."""
    name = f"{weight.name}.{start}.{stop}"
    if name in graph.initializers:
        return graph.initializers[name]
    width = tensor.nbytes // int(tensor.shape.numpy()[0])
    shape = ir.Shape([stop - start, *tensor.shape[1:]])
    part = ir.ExternalTensor(
        tensor.location,
        (tensor.offset or 0) + start * width,
        (stop - start) * width,
        tensor.dtype,
        shape=shape,
        name=name,
        base_dir=tensor.base_dir,
    )
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=part)
    graph.register_initializer(value)
    return value


def _read(graph: ir.Graph, node: ir.Node, part: ir.Value) -> None:
    """Let the readers of ``node`` read ``part``, in the type they did."""
    (old,) = node.outputs
    new = part
    if old.dtype is not None and old.dtype != part.dtype:
        name = f"{part.name}.Cast"
        twin = next((use.node for use in part.uses() if use.node.op_type == "Cast"), None)
        if twin is None:
            twin = ir.node("Cast", [part], attributes={"to": old.dtype}, name=name)
            made = twin.outputs[0]
            made.name, made.type, made.shape = f"{name}.0", ir.TensorType(old.dtype), part.shape
            graph.insert_before(graph[0], twin)
        new = twin.outputs[0]
    ir.convenience.replace_all_uses_with(old, new)
    graph.remove(node, safe=True)
