from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.export.passes.attach_weights import AttachWeights
from dlmc.export.passes.share_slices import ShareSlices

TABLE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def model() -> ir.Model:
    """Multiply with two halves of ``table``, one of them twice, and with columns of it."""
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (float[N,2] x) => (float[N,3] low, float[N,3] high, float[N,3] again, float[4,2] cut)
        <float[4,3] table = {0,0,0,0,0,0,0,0,0,0,0,0},
         int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {99}>
        {
            first = Slice(table, zero, two, zero, one)
            low = MatMul(x, first)
            second = Slice(table, two, end, zero, one)
            high = MatMul(x, second)
            third = Slice(table, two, end, zero)
            again = MatMul(x, third)
            cut = Slice(table, zero, two, one, one)
        }
        """
    )
    for node in model.graph:
        for value in node.outputs:
            value.dtype = ir.DataType.FLOAT
    model.graph.initializers["table"].const_value = None
    return model


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_rows_are_read_where_they_lie(model: ir.Model, tmp_path: Path, dtype: type):
    stored: np.ndarray[Any, Any] = TABLE.astype(dtype)
    (tmp_path / "w.bin").write_bytes(b"8 others" + stored.tobytes())
    kind = ir.DataType.from_numpy(stored.dtype)
    tensor = ir.ExternalTensor(
        "w.bin", 8, stored.nbytes, kind, shape=ir.Shape([4, 3]), name="table"
    )
    AttachWeights({"table": tensor})(model)
    assert ShareSlices()(model).modified
    assert sum(node.op_type == "Slice" for node in model.graph) == 1, (
        "columns are no range of bytes"
    )
    weights = [value.const_value for value in model.graph.initializers.values()]
    parts = [one for one in weights if isinstance(one, ir.ExternalTensor) and "table." in one.name]
    half = stored.nbytes // 2
    assert [(one.offset, one.length) for one in parts] == [(8, half), (8 + half, half)]
    (tmp_path / "m.onnx").write_bytes(ir.to_proto(model).SerializeToString())
    x = np.eye(2, dtype=np.float32)
    low, high, again, cut = ort.InferenceSession(str(tmp_path / "m.onnx")).run(None, {"x": x})
    wide = stored.astype(np.float32)
    np.testing.assert_array_equal(low, wide[:2])
    np.testing.assert_array_equal(high, wide[2:])
    np.testing.assert_array_equal(again, wide[2:])
    np.testing.assert_array_equal(cut, wide[:, :2])
    assert not ShareSlices()(model).modified
