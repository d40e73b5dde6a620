"""Which nodes compute in float32 whatever the precision of the graph around them."""

from collections.abc import Iterable

import onnx_ir as ir

from dlmc.lowering.experts import routers
from dlmc.lowering.weights import weight_of

NORMS = frozenset({"RMSNormalization", "LayerNormalization", "SimplifiedLayerNormalization"})
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_ANGLES = frozenset({"Cos", "Sin"})
_ROTATIONS = frozenset({"RotaryEmbedding"})
_ARITHMETIC = frozenset({"Mul", "Add", "Sub", "Neg"})

# What only moves values: exact in any precision, so it follows those who read its result.
_MOVES = frozenset(
    {"Transpose", "Reshape", "Slice", "Concat", "Squeeze", "Unsqueeze", "Expand", "Split", "Neg"}
)

HEAD_INPUTS = ("head_rows", "temperature", "uniform", "guidance", "partner")


def fp32_islands(graph: ir.Graph, *, low_products: bool = False) -> set[ir.Node]:
    """Return the nodes that stay in float32, decided by operator and structure.

    - norms and softmax, by operator;
    - rotary embedding: whatever cosines and sines are made from, and the products and sums they
      go into;
    - the head: whatever depends on the rows it is asked for, on temperature, on the random
      numbers or on guidance;
    - the routers of experts, see `dlmc.lowering.experts.routers`;
    - whatever makes floats from other types, such as the positions that angles are made from, and
      what is computed from those floats and constants alone: positions exceed float16;
    - whatever only moves values that nobody but the above reads, so that no value is rounded on
      the way from one to the next.

    With ``low_products``, the head's products with weights are not among them.
    """
    islands = {n for n in graph if n.op_type in NORMS | _SOFTMAX | _ROTATIONS}
    islands |= _from_other_types(graph) | _rotation(graph) | head_nodes(graph) | routers(graph)
    if low_products:
        islands -= {node for node in head_nodes(graph) if _multiplies_weight(node)}
    for node in reversed(list(graph)):
        if node.op_type in _MOVES and _floats(node.outputs) and _only_read_by(node, islands):
            islands.add(node)
    return islands


def _multiplies_weight(node: ir.Node) -> bool:
    """Whether ``node`` is a product with a weight, as it is stored or turned."""
    value = node.inputs[1] if node.op_type == "MatMul" else None
    turn = value.producer() if value is not None else None
    if turn is not None and turn.op_type == "Transpose":
        value = turn.inputs[0]
    return weight_of(value) is not None


def _from_other_types(graph: ir.Graph) -> set[ir.Node]:
    """Return what makes floats from other types, and what only such floats and constants enter."""
    found: set[ir.Node] = set()
    for node in graph:
        entering = [value for value in node.inputs if value is not None and _is_float(value)]
        varying = [value for value in entering if not value.is_initializer()]
        follows = bool(varying) and all(value.producer() in found for value in varying)
        if _makes_floats(node) or (follows and _floats(node.outputs)):
            found.add(node)
    return found


def _makes_floats(node: ir.Node) -> bool:
    """Whether ``node`` is no cast of a weight, and makes floats from values of other types."""
    takes = any(value is not None and _is_float(value) for value in node.inputs)
    return bool(_floats(node.outputs)) and not takes


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _floats(values: Iterable[ir.Value]) -> list[ir.Value]:
    return [value for value in values if _is_float(value)]


def _rotation(graph: ir.Graph) -> set[ir.Node]:
    seeds = [node for node in graph if node.op_type in _ANGLES]
    found, stack = set(seeds), list(seeds)
    while stack:  # what the angles are made from
        for maker in stack.pop().predecessors():
            if maker not in found and _floats(maker.outputs):
                found.add(maker)
                stack.append(maker)
    stack = list(seeds)
    while stack:  # what they are multiplied with, and the sum of that
        for user in stack.pop().successors():
            if user not in found and user.op_type in _ARITHMETIC:
                found.add(user)
                stack.append(user)
    return found


def head_nodes(graph: ir.Graph) -> set[ir.Node]:
    """Return what depends on the head's own inputs: everything from the rows it gathers on."""
    found: set[ir.Node] = set()
    values = [value for value in graph.inputs if value.name in HEAD_INPUTS]
    while values:
        for use in values.pop().uses():
            # A size says nothing about values, and the optimizer takes it from any input.
            if use.node not in found and use.node.op_type != "Shape":
                found.add(use.node)
                values += use.node.outputs
    return found


def _only_read_by(node: ir.Node, readers: set[ir.Node]) -> bool:
    uses = [use.node for value in node.outputs for use in value.uses()]
    left = any(value.is_graph_output() for value in node.outputs)
    return bool(uses) and not left and all(user in readers for user in uses)
