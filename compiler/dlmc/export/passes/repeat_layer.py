"""Make a deep network of one that was traced with few layers."""

import copy
import re
from collections.abc import MutableSequence, Sequence

import onnx_ir as ir

_NUMBERED = re.compile(r"^(layers|past_key_values|present)\.(\d+)\.")
_LAYERED = re.compile(r"^(past_key_values|present)\.(?P<layer>\d+)\.(?P<part>key|value)$")


def layers_to_trace(count: int, period: int = 1) -> int:
    """Return how many of ``count`` layers to trace, where they repeat after ``period`` of them.

    The first is not repeated: what the next takes from it shows what layers hand on. Where the
    rest does not divide into periods, all are traced.
    """
    few = 1 + period
    return count if count <= few or (count - 1) % period else few


class RepeatLayer(ir.passes.InPlacePass):
    """Appends copies of layers 1 to ``period`` until there are ``count`` layers.

    The tracer spends a second or more on the symbolic shapes of every layer, and layers repeat.
    Parameters, cache inputs and outputs of the copies are named as a trace of all layers
    would name them; what does not depend on the layer stays shared.

    Args:
        count: layers of the network; where `layers_to_trace` is as many, there is nothing to do.
        period: after how many layers, the first aside, they repeat.
    """

    def __init__(self, count: int, period: int = 1) -> None:
        super().__init__()
        self._count, self._period = count, period

    @property
    def _complete(self) -> bool:
        return layers_to_trace(self._count, self._period) == self._count

    def requires(self, model: ir.Model) -> None:
        """A period takes one tensor from layer 0 and hands one on, of the same type and shape."""
        if self._complete:
            return
        taken, given = _carried(model.graph, self._period)
        if len(taken) != 1 or len(given) != 1:
            raise ir.passes.PreconditionError(f"a period takes {taken} and hands on {given}")
        if (taken[0].dtype, taken[0].shape) != (given[0].dtype, given[0].shape):
            raise ir.passes.PreconditionError(f"a period turns {taken[0]} into {given[0]}")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Append the copies."""
        graph = model.graph
        if self._complete:
            return ir.passes.PassResult(model, modified=False)
        template = _nodes_of(graph, range(1, 1 + self._period))
        (taken,), (given,) = _carried(graph, self._period)
        users = [use for use in given.uses() if use.node not in template]
        hidden, anchor = given, template[-1]
        for offset in range(self._period, self._count - 1, self._period):
            copies = _Copies(graph, self._period, offset, {taken: hidden})
            nodes = [copies.node(node) for node in template]
            graph.insert_after(anchor, nodes)
            hidden, anchor = copies.values[given], nodes[-1]
        for node, index in users:
            node.replace_input_with(index, hidden)
        _arrange(graph.inputs)
        _arrange(graph.outputs)
        return ir.passes.PassResult(model, modified=True)


class _Copies:
    """The values of one copied period, ``offset`` layers on, made when first asked for."""

    def __init__(
        self, graph: ir.Graph, period: int, offset: int, values: dict[ir.Value, ir.Value]
    ) -> None:
        self._graph, self._period, self._offset = graph, period, offset
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
        match = _NUMBERED.match(str(name))
        if match is None or not 1 <= int(match[2]) <= self._period:
            return str(name)
        return f"{match[1]}.{int(match[2]) + self._offset}.{str(name)[match.end() :]}"


def _nodes_of(graph: ir.Graph, layers: Sequence[int]) -> list[ir.Node]:
    stems = tuple(f"layers.{layer}." for layer in layers)
    return [node for node in graph if str(node.name).startswith(stems)]


def _carried(graph: ir.Graph, period: int) -> tuple[list[ir.Value], list[ir.Value]]:
    """Return the activations that a period takes from layer 0, and those it hands on."""
    first, template = set(_nodes_of(graph, [0])), set(_nodes_of(graph, range(1, 1 + period)))
    return _between(first, template), _between(template, set(graph) - first - template)


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
