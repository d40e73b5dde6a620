"""Finding the weight behind a value of the graph, and changing which bytes it reads."""

import onnx_ir as ir

_FORMS = frozenset({"Cast", "Transpose"})
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def weight_of(value: ir.Value | None) -> ir.Value | None:
    """Return the float initializer that ``value`` is, or is an export's ``Cast`` of."""
    if value is None:
        return None
    node = value.producer()
    if node is not None and node.op_type == "Cast":
        value = node.inputs[0]
    if value is None or not value.is_initializer() or value.dtype not in _FLOATS:
        return None
    return value


def add_initializer(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add an initializer with the name, type and shape of ``tensor``."""
    value = ir.Value(
        name=tensor.name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def remove_unread(graph: ir.Graph) -> None:
    """Remove casts and transposes of weights that nothing reads now, and then such weights."""
    for node in reversed(list(graph)):
        value = node.outputs[0]
        if node.op_type in _FORMS and not value.uses() and not value.is_graph_output():
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses():
            del graph.initializers[name]
