"""Let ONNX Runtime mix experts with its own kernel."""

import onnx_ir as ir

from dlmc.lowering.experts import DOWN, GATE_UP, mixtures, source_of
from dlmc.lowering.passes.matmul_nbits import DOMAIN, INT8_ACCURACY
from dlmc.lowering.quantize import Scheme, blobs_of, scales_of
from dlmc.lowering.streamed import Interleaved, Streamed, as_rows, converted
from dlmc.lowering.weights import add_initializer, remove_unread, weight_of

_FULL = ir.DataType.FLOAT
_KERNEL = "silu"


class NativeMixture(ir.passes.InPlacePass):
    """Replaces mixtures by ``com.microsoft.MoE``, or by ``QMoE`` where experts become integers.

    Its kernels for the CPU skip the experts that a token does not use. They know SiLU, and want the
    rows of gate and up in turns; mixtures with another activation, of another type than float32, or
    with widths that no block divides, stay as they are.

    Args:
        bits: 8 or 4; 0 leaves weights as they are stored.
        block: values that share a scale.
    """

    def __init__(self, bits: int, block: int) -> None:
        super().__init__()
        self._bits, self._block = bits, block

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Replace the mixtures that the kernel can compute."""
        found = [node for node in mixtures(model.graph) if self._fits(node)]
        for node in found:
            _Replacement(model.graph, node, self._bits, self._block).make()
        remove_unread(model.graph)
        if found:
            model.opset_imports[DOMAIN] = 1
        return ir.passes.PassResult(model, bool(found))

    def _fits(self, node: ir.Node) -> bool:
        if node.attributes["activation"].as_string() != _KERNEL or node.outputs[0].dtype != _FULL:
            return False
        if any(weight_of(node.inputs[index]) is None for index in (GATE_UP, DOWN)):
            return False  # quantized in plain ONNX
        widths = (source_of(node, index).shape.numpy()[2] for index in (GATE_UP, DOWN))
        return not self._bits or all(width % self._block == 0 for width in widths)


class _Replacement:
    """The nodes that stand for one mixture."""

    def __init__(self, graph: ir.Graph, node: ir.Node, bits: int, block: int) -> None:
        self._graph, self._node, self._bits, self._block = graph, node, bits, block

    def make(self) -> None:
        """Replace the node."""
        x, shares = self._node.inputs[:2]
        (result,) = self._node.outputs
        if x is None or shares is None:
            raise ir.passes.PassError(f"{self._node.name} lacks an input")
        experts = source_of(self._node, GATE_UP).shape.numpy()[0]
        rows = self._emit("Reshape", [shares, self._ints("rows", [-1, experts])])
        made = self._quantized(x, rows) if self._bits else self._whole(x, shares, rows)
        name, made.shape = result.name, result.shape
        ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
        self._graph.remove(self._node, safe=True)
        made.name = name

    def _whole(self, x: ir.Value, shares: ir.Value, rows: ir.Value) -> ir.Value:
        """Return the mixture by a kernel that takes logits and scales their softmax to one.

        Logarithms of shares make shares of one sum, which are then scaled back.
        """
        weights = [self._stored(index) for index in (GATE_UP, DOWN)]
        inputs = [x, self._emit("Log", [rows]), weights[0], None, weights[1]]
        mixed = self._emit("MoE", inputs, DOMAIN, normalize_routing_weights=1, **self._common())
        total = self._emit("ReduceSum", [shares, self._ints("last", [-1])], keepdims=1)
        return self._emit("Mul", [mixed, total])

    def _quantized(self, x: ir.Value, rows: ir.Value) -> ir.Value:
        """Return the mixture by a kernel that takes shares as they are."""
        gate_up, gate_up_scale = self._integers(GATE_UP)
        down, down_scale = self._integers(DOWN)
        none = [None] * 6
        inputs = [x, rows, gate_up, gate_up_scale, None, down, down_scale, None, *none, rows]
        return self._emit(
            "QMoE",
            inputs,
            DOMAIN,
            expert_weight_bits=self._bits,
            block_size=self._block,
            accuracy_level=INT8_ACCURACY,
            **self._common(),
        )

    def _common(self) -> dict[str, int | float | str]:
        return {
            "k": self._node.attributes["k"].as_int(),
            "activation_type": "swiglu",
            "swiglu_fusion": 1,
            "activation_alpha": 1.0,
            "activation_beta": 0.0,
        }

    def _rows(self, index: int) -> ir.TensorProtocol:
        source = source_of(self._node, index)
        return Interleaved(source) if index == GATE_UP else as_rows(source)

    def _stored(self, index: int) -> ir.Value:
        """Return a weight in float32, stored as the checkpoint stores it."""
        if index == DOWN:
            value = self._node.inputs[index]
            if value is None:
                raise ir.passes.PassError(f"{self._node.name} lacks its weights")
            return value
        source = source_of(self._node, index)
        name, shape = f"{source.name}.interleaved", tuple(source.shape.numpy())
        flat = converted(self._rows(index), source.dtype, name)
        value = add_initializer(
            self._graph, Streamed(source.dtype, shape, flat.pieces, name, source)
        )
        return value if source.dtype == _FULL else self._emit("Cast", [value], to=_FULL)

    def _integers(self, index: int) -> tuple[ir.Value, ir.Value]:
        rows, name = self._rows(index), source_of(self._node, index).name
        scheme = Scheme(self._bits, self._block, _FULL)
        experts, height, width = source_of(self._node, index).shape.numpy()
        blocks = scheme.blocks(width)
        blobs = blobs_of(rows, scheme, f"{name}.int{self._bits}")
        scales = scales_of(rows, scheme, f"{name}.scale")
        shapes = (experts, height, width * self._bits // 8), (experts, height, blocks)
        made = [
            Streamed(each.dtype, shape, each.pieces, str(each.name), rows)
            for each, shape in zip((blobs, scales), shapes, strict=True)
        ]
        return add_initializer(self._graph, made[0]), add_initializer(self._graph, made[1])

    def _ints(self, name: str, values: list[int]) -> ir.Value:
        stated = ir.tensor(values, ir.DataType.INT64, name=f"{self._node.name}.{name}")
        return add_initializer(self._graph, stated)

    def _emit(
        self,
        op: str,
        inputs: list[ir.Value | None],
        domain: str = "",
        **attributes: int | float | str,
    ) -> ir.Value:
        node = ir.node(
            op, inputs, attributes=attributes, domain=domain, name=f"{self._node.name}.{op}"
        )
        (value,) = node.outputs
        value.name, value.type = f"{node.name}.0", ir.TensorType(_FULL)
        self._graph.insert_before(self._node, node)
        return value
