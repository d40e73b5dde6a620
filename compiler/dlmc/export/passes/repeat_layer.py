"""Make a deep network of one that was traced with two layers."""

import copy
import re
from collections.abc import MutableSequence

import onnx_ir as ir

TRACED = 2
"""How many layers to trace: the second is the template, and what it takes from the first shows
what a layer hands on."""

_TEMPLATE = re.compile(r"^(layers|past_key_values|present)\.1\.")
_LAYERED = re.compile(r"^(past_key_values|present)\.(?P<layer>\d+)\.(?P<part>key|value)$")


class RepeatLayer(ir.passes.InPlacePass):
    """Appends copies of layer 1 until there are ``count`` layers.

    The tracer spends a second or more on the symbolic shapes of every layer, and all layers are
    alike. Parameters, cache inputs and outputs of the copies are named as a trace of all layers
    would name them; what does not depend on the layer stays shared.

    Args:
        count: layers of the network; up to `TRACED` there is nothing to do.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def requires(self, model: ir.Model) -> None:
        """Layer 1 takes one tensor from layer 0 and hands one on, of the same type and shape."""
        if self._count <= TRACED:
            return
        taken, given = _carried(model.graph)
        if len(taken) != 1 or len(given) != 1:
            raise ir.passes.PreconditionError(f"layer 1 takes {taken} and hands on {given}")
        if (taken[0].dtype, taken[0].shape) != (given[0].dtype, given[0].shape):
            raise ir.passes.PreconditionError(f"layer 1 turns {taken[0]} into {given[0]}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Append the copies."""
        graph = model.graph
        if self._count <= TRACED:
            return ir.passes.PassResult(model, modified=False)
        template = _nodes_of(graph, 1)
        (taken,), (given,) = _carried(graph)
        users = [use for use in given.uses() if use.node not in template]
        hidden, anchor = given, template[-1]
        for layer in range(TRACED, self._count):
            copies = _Copies(graph, layer, {taken: hidden})
            nodes = [copies.node(node) for node in template]
            graph.insert_after(anchor, nodes)
            hidden, anchor = copies.values[given], nodes[-1]
        for node, index in users:
            node.replace_input_with(index, hidden)
        _arrange(graph.inputs)
        _arrange(graph.outputs)
        return ir.passes.PassResult(model, modified=True)


class _Copies:
    """The values of one copied layer, made when first asked for."""

    def __init__(self, graph: ir.Graph, layer: int, values: dict[ir.Value, ir.Value]) -> None:
        self._graph, self._layer = graph, layer
        self.values = values

    def node(self, node: ir.Node) -> ir.Node:
        """Copy a node of the template."""
        twin = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else self._input(value) for value in node.inputs],
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=self._rename(node.name),
        )
        for value, original in zip(twin.outputs, node.outputs, strict=True):
            value.name, value.type, value.shape = self._like(original)
            self.values[original] = value
            if original.is_graph_output():
                self._graph.outputs.append(value)
        return twin

    def _input(self, value: ir.Value) -> ir.Value:
        """Return what stands for ``value`` in this layer: itself, unless it is of the layer."""
        if value not in self.values and _TEMPLATE.match(str(value.name)):
            name, kind, shape = self._like(value)
            self.values[value] = own = ir.Value(name=name, type=kind, shape=shape)
            if value.is_initializer():
                self._graph.initializers.add(own)
            else:
                self._graph.inputs.append(own)
        return self.values.get(value, value)

    def _like(self, value: ir.Value) -> tuple[str, ir.TypeProtocol | None, ir.Shape | None]:
        # Types are mutable: a weight's later change of type must not reach its copies.
        return self._rename(value.name), copy.copy(value.type), value.shape

    def _rename(self, name: str | None) -> str:
        return _TEMPLATE.sub(rf"\g<1>.{self._layer}.", str(name))


def _nodes_of(graph: ir.Graph, layer: int) -> list[ir.Node]:
    return [node for node in graph if str(node.name).startswith(f"layers.{layer}.")]


def _carried(graph: ir.Graph) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the activations that layer 1 takes from layer 0, and those it hands on."""
    layers = [set(_nodes_of(graph, layer)) for layer in range(TRACED)]
    return _between(*layers), _between(layers[1], set(graph) - layers[0] - layers[1])


def _between(makers: set[ir.Node], users: set[ir.Node]) -> list[ir.Value]:
    """Return the float values that some of ``users`` take from ``makers``.

    Integers are shapes: the optimizer computes them once, in the first layer that needs them.
    """
    return [
        value
        for node in makers
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and any(use.node in users for use in value.uses())
    ]


def _arrange(values: MutableSequence[ir.Value]) -> None:
    """Move the inputs or outputs of all layers to where the first one's are, in order."""
    found = [(match, value) for value in values if (match := _LAYERED.match(str(value.name)))]
    start = values.index(found[0][1])
    for _, value in found:
        values.remove(value)
    found.sort(key=lambda pair: (int(pair[0]["layer"]), pair[0]["part"]))
    for offset, (_, value) in enumerate(found):
        values.insert(start + offset, value)
