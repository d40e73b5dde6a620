"""Multiply with weights as they lie in the checkpoint, instead of with their transposes."""

import onnx_ir as ir

from dlmc.lowering.weights import add_initializer, remove_unread, weight_of

_RANK = 3


class GemmWeights(ir.passes.InPlacePass):
    """Turns ``MatMul(x, Transpose(weight))`` into ``Gemm(x, weight, transB=1)`` on rows of x.

    ONNX Runtime computes a transpose of a weight when it loads and keeps both, besides what it
    packs for its kernels: a float32 engine then takes twice its weights. ``Gemm`` takes two
    dimensions, so x [B,T,in] becomes [B*T,in] before it, once for all products that read it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the products."""
        rows = _Rows(model.graph)
        found = [node for node in model.graph if _operands(node)]
        for node in found:
            # Asked for anew: what it reads may be a product that has been replaced.
            operands = _operands(node)
            if operands:
                rows.replace(node, *operands)
        remove_unread(model.graph)
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No product reads a transposed weight."""
        for node in model.graph:
            if _operands(node):
                raise ir.passes.PostconditionError(f"{node.name} reads a transpose")


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return x of three dimensions and the weight whose transpose it is multiplied with."""
    if node.op_type != "MatMul":
        return None
    x, turned = node.inputs
    turn = turned.producer() if turned is not None else None
    if x is None or x.shape is None or x.shape.rank() != _RANK:
        return None
    weight = turn.inputs[0] if turn is not None and turn.op_type == "Transpose" else None
    if weight_of(weight) is None or weight is None or weight.shape is None:
        return None  # quantized weights keep the form that engines look for
    return (x, weight) if weight.shape.rank() == 2 else None


class _Rows:
    """Values as rows, and the shapes to give results back; each made once."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._flat: dict[ir.Value, ir.Value] = {}
        self._dims: dict[tuple[ir.Value, int], ir.Value] = {}

    def replace(self, product: ir.Node, x: ir.Value, weight: ir.Value) -> None:
        (result,) = product.outputs
        height, width = weight.shape.numpy() if weight.shape is not None else (0, 0)
        name, dtype = str(product.name), result.dtype
        flat, dims = self._rows(x, width, product), self._shape(x, height, product)
        gemm = self._node(product, "Gemm", [flat, weight], f"{name}.Gemm", dtype, transB=1)
        back = self._node(product, "Reshape", [gemm, dims], f"{name}.Reshape", dtype)
        back.shape, label = result.shape, result.name
        ir.convenience.replace_all_uses_with(result, back, replace_graph_outputs=True)
        self._graph.remove(product, safe=True)
        back.name = label

    def _rows(self, x: ir.Value, width: int, before: ir.Node) -> ir.Value:
        if x not in self._flat:
            shape = self._constant(f"{x.name}.row_shape", [-1, width])
            self._flat[x] = self._node(before, "Reshape", [x, shape], f"{x.name}.Rows", x.dtype)
        return self._flat[x]

    def _shape(self, x: ir.Value, width: int, before: ir.Node) -> ir.Value:
        if (x, width) not in self._dims:
            name, kind = f"{x.name}.{width}", ir.DataType.INT64
            lead = self._node(before, "Shape", [x], f"{name}.Shape", kind, start=0, end=2)
            dims = [lead, self._constant(f"{name}.width", [width])]
            self._dims[x, width] = self._node(
                before, "Concat", dims, f"{name}.Concat", kind, axis=0
            )
        return self._dims[x, width]

    def _constant(self, name: str, values: list[int]) -> ir.Value:
        return add_initializer(self._graph, ir.tensor(values, ir.DataType.INT64, name=name))

    def _node(
        self,
        before: ir.Node,
        op: str,
        inputs: list[ir.Value],
        name: str,
        dtype: ir.DataType | None,
        **attributes: int,
    ) -> ir.Value:
        node = ir.node(op, inputs, attributes=attributes, name=name)
        (value,) = node.outputs
        value.name = f"{name}.0"
        value.type = None if dtype is None else ir.TensorType(dtype)
        self._graph.insert_before(before, node)
        return value
