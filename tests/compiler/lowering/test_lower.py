from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from dlmc.lowering.lower import Lowering, lower
from dlmc.lowering.streamed import rows


def weight(graph: Path, name: str) -> np.ndarray:
    """Read an initializer, whose file may have several names."""
    tensor = ir.load(graph).graph.initializers[name].const_value
    assert tensor is not None
    return np.concatenate(list(rows(tensor)))


def test_a_bundle_of_bfloat16_weights_lowers_to_bfloat16_without_another_weight(sdar, tmp_path):
    found = lower(sdar, Lowering("bfloat16"), tmp_path)
    assert (found.graph, found.cache_dtype) == ("denoiser.onnx", "bfloat16")
    assert found.weights == ("weights/model.safetensors",)
    linked = tmp_path / "weights" / "model.safetensors"
    assert linked.samefile(sdar.root / "weights" / "model.safetensors")


def test_float16_converts_the_weights(sdar, tmp_path):
    found = lower(sdar, Lowering("float16"), tmp_path)
    assert "weights/lowered.safetensors" in found.weights
    name = "layers.0.mlp.up_proj.weight"
    low = weight(tmp_path / found.graph, f"{name}.float16")
    np.testing.assert_array_equal(low, weight(sdar.root / "denoiser.onnx", name).astype(np.float16))


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_onnx_finds_the_types_consistent(sdar, tmp_path, precision):
    found = lower(sdar, Lowering(precision), tmp_path)
    proto = onnx.load(tmp_path / found.graph, load_external_data=False)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


def test_onnxruntime_loads_float16(sdar, tmp_path):
    found = lower(sdar, Lowering("float16"), tmp_path)
    session = ort.InferenceSession(str(tmp_path / found.graph))
    types = {value.name: value.type for value in (*session.get_inputs(), *session.get_outputs())}
    assert types["past_key_values.0.key"] == types["present.5.value"] == "tensor(float16)"
    assert types["top_logits"] == types["temperature"] == "tensor(float)"
