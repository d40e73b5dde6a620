import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.lowering.linear import linears
from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.passes.lower_precision import LowerPrecision
from dlmc.lowering.passes.quantize_activations import QuantizeActivations


def pair() -> ir.Model:
    """Two linear maps of the same values, and one of their sum."""
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (float[n,2] x) => (float[n,2] y)
        <float[2,2] a = {1,0,0,1}, float[2,2] b = {1,1,0,1}, float[2,2] c = {1,0,0,1}>
        {
            at = Transpose<perm=[1,0]>(a)
            [first] left = MatMul(x, at)
            bt = Transpose<perm=[1,0]>(b)
            [second] right = MatMul(x, bt)
            sum = Add(left, right)
            ct = Transpose<perm=[1,0]>(c)
            [third] y = MatMul(sum, ct)
        }
        """
    )
    for node in model.graph:
        for value in node.outputs:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    return model


MAGNITUDES = {"first": 12.7, "second": 12.7, "third": 25.4}


def test_values_are_rounded_and_cut_off():
    model = pair()
    assert QuantizeActivations(MAGNITUDES)(model).modified
    values = np.array([[0.14, -0.26], [100.0, 3.0]], np.float32)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    (found,) = session.run(None, {"x": values})
    rounded = np.array([[0.1, -0.3], [12.7, 3.0]], np.float32)
    total = rounded + rounded @ np.array([[1, 0], [1, 1]], np.float32)
    expected = np.clip(np.rint(total / 0.2), -128, 127) * 0.2
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_maps_of_the_same_values_share_the_pair():
    model = pair()
    QuantizeActivations(MAGNITUDES)(model)
    found = [node.op_type for node in model.graph]
    assert (found.count("QuantizeLinear"), found.count("DequantizeLinear")) == (2, 2)
    first, second = (n.inputs[0] for n in model.graph if n.name in ("first", "second"))
    assert first is second


def test_the_zero_point_is_zero_and_shared():
    model = pair()
    QuantizeActivations(MAGNITUDES)(model)
    points = {node.inputs[2] for node in model.graph if node.op_type.endswith("zeLinear")}
    (point,) = points
    assert point is not None
    assert point.const_value is not None
    assert point.const_value.numpy() == np.int8(0)


@pytest.mark.parametrize("magnitude", [np.nan, np.inf])
def test_refuses_a_magnitude_that_is_not_finite(magnitude):
    with pytest.raises(ir.passes.PreconditionError, match="no magnitude for second"):
        QuantizeActivations({**MAGNITUDES, "second": magnitude})(pair())


def test_refuses_a_map_without_a_magnitude():
    with pytest.raises(ir.passes.PreconditionError, match="no magnitude for third"):
        QuantizeActivations({"first": 1.0, "second": 1.0})(pair())


def test_silence_has_a_scale_that_engines_accept():
    model = pair()
    QuantizeActivations({**MAGNITUDES, "third": 0.0})(model)
    scale = model.graph.initializers["sum.scale"].const_value
    assert scale is not None
    assert scale.numpy() > 0


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_scales_have_the_type_of_the_values(sdar, dtype):
    model = ir.load(sdar.root / "denoiser.onnx")
    LowerPrecision(dtype)(model)
    found = list(linears(model.graph))
    QuantizeActivations({str(linear.product.name): 5.0 for linear in found})(model)
    CheckTypes(dtype)(model)
    layers = sdar.manifest.model.num_hidden_layers
    pairs = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    assert len(pairs) == 3 * layers  # q, k and v share theirs, gate and up share theirs
    assert {node.inputs[1].dtype for node in pairs} == {dtype}  # type: ignore[union-attr]
    for linear in found:
        maker = linear.product.inputs[0].producer() if linear.product.inputs[0] else None
        assert maker is not None
        gated = ".down_proj." in linear.name
        assert maker.op_type == ("Mul" if gated else "DequantizeLinear")
