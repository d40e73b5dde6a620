from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.export.passes.attach_weights import AttachWeights

TABLE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
SCALE = np.array([1.0, 2.0, 3.0], np.float32)
IDS = {"ids": np.array([2, 0])}


@pytest.fixture
def model() -> ir.Model:
    """Look rows up in ``table``, scale them and multiply by ``table`` again."""
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (int64[N] ids) => (float[N,4] y)
        <float[4,3] table = {0,0,0,0,0,0,0,0,0,0,0,0}, float[3] scale = {0,0,0}, int64[1] k = {1}>
        {
            row = Gather(table, ids)
            scaled = Mul(row, scale)
            turned = Transpose(table)
            y = MatMul(scaled, turned)
        }
        """
    )
    for name in ("table", "scale"):
        model.graph.initializers[name].const_value = None
    return model


def store(root: Path, dtype: Any = np.float32) -> dict[str, ir.ExternalTensor]:
    """Write both weights behind eight other bytes; return where they are."""
    types = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
    stored, data, weights = np.dtype(dtype), b"8 bytes!", {}
    for name, array in (("table", TABLE), ("scale", SCALE)):
        piece = array.astype(stored).tobytes()
        weights[name] = ir.ExternalTensor(
            "weights.bin",
            len(data),
            len(piece),
            ir.DataType[types[stored.name]],
            shape=ir.Shape(array.shape),
            name=name,
        )
        data += piece
    (root / "weights.bin").write_bytes(data)
    return weights


def run(model: ir.Model, root: Path) -> np.ndarray:
    ir.save(model, root / "model.onnx")
    onnx.checker.check_model(str(root / "model.onnx"), full_check=True)
    result: np.ndarray = ort.InferenceSession(str(root / "model.onnx")).run(None, IDS)[0]
    return result


def product(dtype: Any) -> np.ndarray:
    table, scale = (array.astype(dtype).astype(np.float32) for array in (TABLE, SCALE))
    result: np.ndarray = (table[IDS["ids"]] * scale) @ table.T
    return result


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_graph_computes_with_the_stored_values(model, tmp_path, dtype):
    assert AttachWeights(store(tmp_path, dtype))(model).modified
    np.testing.assert_allclose(run(model, tmp_path), product(dtype), rtol=1e-6)


def test_weights_stay_where_they_are(model, tmp_path):
    AttachWeights(store(tmp_path))(model)
    ir.save(model, tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    found = {one.name: one for one in proto.graph.initializer}
    assert {entry.key: entry.value for entry in found["scale"].external_data} == {
        "location": "weights.bin",
        "offset": "56",
        "length": "12",
    }
    assert not found["table"].raw_data


def test_one_cast_serves_all_uses(model, tmp_path):
    AttachWeights(store(tmp_path, ml_dtypes.bfloat16))(model)
    casts = [node for node in model.graph if node.op_type == "Cast"]
    assert sorted(str(node.name) for node in casts) == ["scale.Cast", "table.Cast"]
    table = next(node for node in casts if node.name == "table.Cast")
    assert len(list(table.outputs[0].uses())) == 2
    assert table.outputs[0].name == "table.Cast.0"
    assert model.graph.initializers["table"].dtype == ir.DataType.BFLOAT16


def test_a_weight_of_the_graphs_type_needs_no_cast(model, tmp_path):
    AttachWeights(store(tmp_path))(model)
    assert "Cast" not in {node.op_type for node in model.graph}


def test_values_that_shared_their_type_keep_it(model, tmp_path):
    scale, output = model.graph.initializers["scale"], model.graph.outputs[0]
    output.type = scale.type
    AttachWeights(store(tmp_path, np.float16))(model)
    assert (scale.dtype, output.dtype) == (ir.DataType.FLOAT16, ir.DataType.FLOAT)


def test_types_may_be_mixed(model, tmp_path):
    low, full = store(tmp_path, np.float16), store(tmp_path)
    AttachWeights({"table": full["table"], "scale": low["scale"]})(model)
    assert [node.name for node in model.graph if node.op_type == "Cast"] == ["scale.Cast"]


def test_constants_of_the_graph_are_left_alone(model, tmp_path):
    AttachWeights(store(tmp_path))(model)
    assert model.graph.initializers["k"].const_value.numpy() == [1]


@pytest.mark.parametrize("missing", ["table", "scale"])
def test_refuses_a_parameter_without_a_weight(model, tmp_path, missing):
    weights = store(tmp_path)
    del weights[missing]
    with pytest.raises(ir.passes.PreconditionError, match=missing):
        AttachWeights(weights)(model)


def test_refuses_a_weight_without_a_parameter(model, tmp_path):
    weights = store(tmp_path)
    weights["other"] = weights["scale"]
    with pytest.raises(ir.passes.PreconditionError, match="other"):
        AttachWeights(weights)(model)


def test_refuses_a_weight_of_another_shape(model, tmp_path):
    weights = store(tmp_path)
    weights["table"] = weights["scale"]
    with pytest.raises(ir.passes.PreconditionError, match="table is"):
        AttachWeights(weights)(model)


def test_reads_no_weight(model, tmp_path):
    weights = store(tmp_path, np.float16)
    (tmp_path / "weights.bin").unlink()
    AttachWeights(weights)(model)
    ir.save(model, tmp_path / "model.onnx")
