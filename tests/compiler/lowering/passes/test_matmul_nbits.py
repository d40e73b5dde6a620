import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.lowering.linear import linears
from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.passes.lower_precision import LowerPrecision
from dlmc.lowering.passes.matmul_nbits import MatMulNBits
from dlmc.lowering.quantize import Scheme

RNG = np.random.default_rng(0)


def single(count: int, length: int) -> tuple[ir.Model, np.ndarray]:
    """One linear map [length] to [count] whose product is the graph's output, and its weight."""
    model = ir.from_onnx_text(
        f"""
        <ir_version: 10, opset_import: ["" : 23]>
        main (float[n,{length}] x) => (float[n,{count}] y)
        <float[{count},{length}] w = {{{",".join(["0"] * count * length)}}}>
        {{
            turned = Transpose<perm=[1,0]>(w)
            [product] y = MatMul(x, turned)
        }}
        """
    )
    weight = RNG.standard_normal((count, length)).astype(np.float32)
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    return model, weight


@pytest.mark.parametrize(("count", "length"), [(1, 32), (5, 64), (3, 20), (2, 100)])
@pytest.mark.parametrize("bits", [8, 4])
def test_onnxruntime_multiplies_with_the_rounded_weight(bits, count, length):
    model, weight = single(count, length)
    assert MatMulNBits(bits, 32)(model).modified
    scheme = Scheme(bits, 32, ir.DataType.FLOAT)
    rounded = scheme.integers(weight) * scheme.scales(weight)[..., None]
    rounded = rounded.reshape(count, -1)[:, :length]
    values = RNG.standard_normal((3, length)).astype(np.float32)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    (found,) = session.run(None, {"x": values})
    # Values are rounded to 8 bits as well: half a step of a scale of at most 5 / 127 each.
    most = np.abs(rounded).sum(-1) * 5 / 127 / 2
    assert (np.abs(found - values @ rounded.T) < most).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_a_batch_is_rounded_as_its_rows_are(bits):
    model, _ = single(16, 128)
    MatMulNBits(bits, 32)(model)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    values = RNG.standard_normal((6, 128)).astype(np.float32) * [[1], [9], [1], [99], [1], [1]]
    (together,) = session.run(None, {"x": values.astype(np.float32)})
    for row, wanted in enumerate(together):
        (alone,) = session.run(None, {"x": values[row : row + 1].astype(np.float32)})
        np.testing.assert_allclose(alone[0], wanted, rtol=1e-4, atol=1e-5)


def test_node_and_output_keep_their_names():
    model, _ = single(3, 32)
    output = model.graph.outputs[0]
    MatMulNBits(4, 32)(model)
    (node,) = model.graph
    assert (node.name, node.domain, node.op_type) == ("product", "com.microsoft", "MatMulNBits")
    assert {n: a.value for n, a in node.attributes.items()} == {
        "K": 32,
        "N": 3,
        "bits": 4,
        "block_size": 32,
        "accuracy_level": 4,
    }
    made = model.graph.outputs[0]
    assert (made.name, made.type, made.shape) == ("y", output.type, output.shape)
    assert model.opset_imports["com.microsoft"] == 1
    assert set(model.graph.initializers) == {"w.int4", "w.scale"}


def test_every_map_of_the_layers_and_nothing_else(sdar):
    model = ir.load(sdar.root / "denoiser.onnx")
    products = [linear.product.name for linear in linears(model.graph)]
    LowerPrecision(ir.DataType.FLOAT16)(model)
    MatMulNBits(4, 32)(model)
    CheckTypes(ir.DataType.FLOAT16)(model)
    found = [node for node in model.graph if node.domain]
    assert [node.name for node in found] == products
    assert sum(node.op_type == "MatMul" for node in model.graph) == 1
    assert {node.inputs[2].dtype for node in found} == {ir.DataType.FLOAT16}  # type: ignore[union-attr]
    assert not any(node.op_type == "DequantizeLinear" for node in model.graph)
