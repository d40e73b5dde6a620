"""Make a deep network of one that was traced with few layers."""

import copy
import re
from collections.abc import MutableSequence, Sequence
from itertools import pairwise

import onnx_ir as ir

_NUMBERED = re.compile(r"^(layers|past_key_values|present)\.(\d+)\.")
_LAYERED = re.compile(r"^(past_key_values|present)\.(?P<layer>\d+)\.(?P<part>key|value)$")


def kinds_to_trace(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the layers to trace for a network with layers of these kinds.

    The first is not repeated: what the next takes from it shows what layers hand on. Of those
    after it, one of each kind is enough.
    """
    return (*kinds[:1], *dict.fromkeys(kinds[1:]))


class RepeatLayer(ir.passes.InPlacePass):
    """Makes a network with layers of the given kinds of one with those of `kinds_to_trace`.

    The tracer spends a second or more on the symbolic shapes of every layer, and layers repeat.
    Parameters, cache inputs and outputs of the copies are named as a trace of all layers
    would name them; what does not depend on the layer stays shared.

    Args:
        kinds: of all layers of the network.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self._kinds = tuple(kinds)

    def requires(self, model: ir.Model) -> None:
        """A layer takes one tensor from the one before, and hands one on, of one type and shape."""
        for taken, given in self._carried(model.graph):
            if len(taken) != 1 or len(given) != 1:
                raise ir.passes.PreconditionError(f"a layer takes {taken} and hands on {given}")
            if (taken[0].dtype, taken[0].shape) != (given[0].dtype, given[0].shape):
                raise ir.passes.PreconditionError(f"a layer turns {taken[0]} into {given[0]}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Move the traced layers to where the first of their kind are, and copy them."""
        traced = kinds_to_trace(self._kinds)
        if traced == self._kinds:
            return ir.passes.PassResult(model, modified=False)
        graph = model.graph
        carried = dict(zip(traced[1:], self._carried(graph), strict=True))
        nodes = {kind: _nodes_of(graph, i) for i, kind in enumerate(traced) if i}
        final = carried[traced[-1]][1][0]
        users = [use for use in final.uses() if use.node not in nodes[traced[-1]]]
        places = {kind: self._kinds.index(kind, 1) for kind in traced[1:]}
        for index, kind in reversed(list(enumerate(traced))[1:]):  # upwards, so the last first
            _move(nodes[kind], index, places[kind])
        hidden, anchor = carried[traced[1]][0][0], graph[0]
        for layer, kind in enumerate(self._kinds[1:], start=1):
            (taken,), (given,) = carried[kind]
            if layer == places[kind]:
                _replace(nodes[kind], taken, hidden)
                carried[kind] = [hidden], [given]
                hidden, anchor = given, nodes[kind][-1]
                continue
            copies = _Copies(graph, places[kind], layer, {taken: hidden})
            twins = [copies.node(node) for node in nodes[kind]]
            graph.insert_after(anchor, twins)
            hidden, anchor = copies.values[given], twins[-1]
        for node, index in users:
            node.replace_input_with(index, hidden)
        _arrange(graph.inputs)
        _arrange(graph.outputs)
        return ir.passes.PassResult(model, modified=True)

    def _carried(self, graph: ir.Graph) -> list[tuple[list[ir.Value], list[ir.Value]]]:
        """Return the activations that each traced layer but the first takes, and those it gives."""
        layers = [set(_nodes_of(graph, i)) for i in range(len(kinds_to_trace(self._kinds)))]
        return [
            (_between(before, own), _between(own, set(graph) - own))
            for before, own in pairwise(layers)
        ]


def _move(nodes: Sequence[ir.Node], index: int, place: int) -> None:
    """Rename a traced layer, its parameters and its caches to those of another layer."""
    if index == place:
        return
    for node in nodes:
        node.name = _renamed(node.name, index, place)
        for value in (*node.inputs, *node.outputs):
            if value is not None:
                value.name = _renamed(value.name, index, place)


def _replace(nodes: Sequence[ir.Node], old: ir.Value, new: ir.Value) -> None:
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is old:
                node.replace_input_with(index, new)


def _renamed(name: str | None, index: int, place: int) -> str:
    match = _NUMBERED.match(str(name))
    if match is None or int(match[2]) != index:
        return str(name)
    return f"{match[1]}.{place}.{str(name)[match.end() :]}"


class _Copies:
    """The values of a copy of one layer as another, made when first asked for."""

    def __init__(
        self, graph: ir.Graph, original: int, layer: int, values: dict[ir.Value, ir.Value]
    ) -> None:
        self._graph, self._original, self._layer = graph, original, layer
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
        """Return what stands for ``value`` in this copy: itself, unless it is of the template."""
        if value not in self.values and self._rename(value.name) != value.name:
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
        return _renamed(name, self._original, self._layer)


def _nodes_of(graph: ir.Graph, layer: int) -> list[ir.Node]:
    return [node for node in graph if str(node.name).startswith(f"layers.{layer}.")]


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
