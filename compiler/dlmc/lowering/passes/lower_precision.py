"""Let the graph compute in float16 or bfloat16, except where that costs tokens."""

import onnx_ir as ir

from dlmc.lowering.passes.fp32_islands import fp32_islands
from dlmc.lowering.streamed import converted
from dlmc.lowering.weights import add_initializer, remove_unread, weight_of

LOW = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
_FULL = ir.DataType.FLOAT
_NAMES = {_FULL: "float32", **{dtype: name for name, dtype in LOW.items()}}
_SIZES = frozenset({"Shape", "Size"})
_CACHE = ("past_key_values.", "present.")


class LowerPrecision(ir.passes.InPlacePass):
    """Gives every float32 value the low type, except inside `fp32_islands`.

    Cache inputs and outputs become low; the head's inputs and outputs stay float32. One ``Cast``
    a value and type stands where an island begins or ends. A weight whose stored type is the one
    its reader computes in is read as it is, without the export's ``Cast``; one that is stored low
    and read in float32 keeps a ``Cast``, which is exact; any other is converted when it is
    written. Attention takes low queries, keys and values; its ``softmax_precision`` stays unset,
    because TensorRT refuses it and all targets compute that softmax in float32 unasked.

    Args:
        dtype: FLOAT16 or BFLOAT16.
        low_products: whether the head's products with weights are low too, and what enters and
            leaves them; all that is made of them is float32 nevertheless.
    """

    def __init__(self, dtype: ir.DataType, *, low_products: bool = False) -> None:
        super().__init__()
        self._low, self._low_products = dtype, low_products

    def requires(self, model: ir.Model) -> None:
        """The graph computes in float32: nothing has lowered it yet."""
        for node in model.graph:
            for value in node.outputs:
                floating = value.dtype is not None and value.dtype.is_floating_point()
                if floating and value.dtype != _FULL:
                    raise ir.passes.PreconditionError(f"{value.name} is {value.dtype} already")

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Set types, then put casts wherever a reader wants another type than it finds."""
        graph = model.graph
        nodes = [node for node in graph if weight_of(_only_output(node)) is None]
        islands = fp32_islands(graph, low_products=self._low_products)
        readers = [(node, _FULL if node in islands else self._low) for node in nodes]
        for node, dtype in readers:
            if dtype != _FULL:
                self._lower_outputs(node)
        for value in graph.inputs:
            if str(value.name).startswith(_CACHE[0]):
                value.type = ir.TensorType(self._low)
        borders = _Borders(graph)
        for node, dtype in readers:
            borders.adapt(node, dtype)
        for value in list(graph.outputs):
            if str(value.name).startswith(_CACHE[1]):
                borders.hand_out(value, self._low)
        remove_unread(graph)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """The cache is low, the rest of the inputs and outputs is not."""
        for value in (*model.graph.inputs, *model.graph.outputs):
            low = str(value.name).startswith(_CACHE)
            if (value.dtype == self._low) != low:
                raise ir.passes.PostconditionError(f"{value.name} is {value.dtype}")

    def _lower_outputs(self, node: ir.Node) -> None:
        for value in node.outputs:
            if value.dtype == _FULL:
                # A new type, because setting the old one's dtype would change all who share it.
                value.type = ir.TensorType(self._low)


class _Borders:
    """The values of a graph in the types that their readers want, each made once."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def adapt(self, node: ir.Node, dtype: ir.DataType) -> None:
        """Let ``node`` read all its floats as ``dtype``, unless it only asks for their size."""
        if node.op_type in _SIZES:
            return
        for index, value in enumerate(node.inputs):
            if value is None or value.dtype is None or not value.dtype.is_floating_point():
                continue
            node.replace_input_with(index, self._as(weight_of(value) or value, dtype))

    def hand_out(self, value: ir.Value, dtype: ir.DataType) -> None:
        """Let a graph output be ``dtype``, under the name it has."""
        if value.dtype == dtype:
            return
        name, node = str(value.name), value.producer()
        index = self._graph.outputs.index(value)
        value.name = f"{node.name}.0" if node else f"{name}.float32"
        low = self._as(value, dtype)
        low.name = name
        self._graph.outputs[index] = low

    def _as(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if value.dtype == dtype:
            return value
        if (value, dtype) not in self._made:
            # A cast to float32 is exact, and engines fold it where that is worth it.
            make = self._twin if value.is_initializer() and dtype != _FULL else self._cast
            self._made[value, dtype] = make(value, dtype)
        return self._made[value, dtype]

    def _twin(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return a converted copy of an initializer."""
        if value.const_value is None:
            raise ir.passes.PassError(f"{value.name} has no value")
        tensor = converted(value.const_value, dtype, f"{value.name}.{_NAMES[dtype]}")
        inline = not isinstance(value.const_value, ir.ExternalTensor)
        return add_initializer(self._graph, tensor.raw() if inline else tensor)

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        name = f"{value.name}.{_NAMES[dtype]}"
        node = ir.node("Cast", [value], attributes={"to": dtype}, name=f"{name}.Cast")
        (made,) = node.outputs
        made.name, made.type, made.shape = name, ir.TensorType(dtype), value.shape
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], node)
        else:
            self._graph.insert_after(producer, node)
        return made


def _only_output(node: ir.Node) -> ir.Value | None:
    return node.outputs[0] if len(node.outputs) == 1 else None
