from pathlib import Path

import onnx_ir as ir

from dlmc.checkpoint import TensorLocation
from dlmc.export.weights import bundle_path, external_tensors, files_of, imagine_weights

FIRST, SECOND = Path("/store/model-1.safetensors"), Path("/store/model-2.safetensors")
WEIGHTS = {
    "norm.weight": TensorLocation(FIRST, 100, 8, "BF16", (4,)),
    "embed.weight": TensorLocation(SECOND, 300, 48, "F32", (4, 3)),
    "other.weight": TensorLocation(SECOND, 200, 4, "F16", (2,)),
}


def test_every_file_is_linked_once_under_its_name():
    assert files_of(WEIGHTS) == {
        "weights/model-1.safetensors": FIRST,
        "weights/model-2.safetensors": SECOND,
    }


def test_initializers_point_into_the_bundle():
    found = external_tensors(WEIGHTS).items()
    assert {
        name: (t.location, t.offset, t.length, t.dtype, tuple(t.shape)) for name, t in found
    } == {
        "norm.weight": ("weights/model-1.safetensors", 100, 8, ir.DataType.BFLOAT16, (4,)),
        "embed.weight": ("weights/model-2.safetensors", 300, 48, ir.DataType.FLOAT, (4, 3)),
        "other.weight": ("weights/model-2.safetensors", 200, 4, ir.DataType.FLOAT16, (2,)),
    }


def test_imagined_weights_follow_each_other():
    shapes = {"a": (2, 3), "b": (5,)}
    found = imagine_weights(shapes, {"torch_dtype": "bfloat16"})
    assert [(w.offset, w.length, w.dtype) for w in found.values()] == [
        (0, 12, "BF16"),
        (12, 10, "BF16"),
    ]
    assert {bundle_path(w) for w in found.values()} == {"weights/model.safetensors"}


def test_imagined_weights_have_the_dtype_the_config_states():
    def dtype(config: dict[str, object]) -> str:
        return imagine_weights({"a": (1,)}, config)["a"].dtype

    assert dtype({"torch_dtype": "float16"}) == "F16"
    assert dtype({"dtype": "bfloat16", "torch_dtype": "float16"}) == "BF16"
    assert dtype({}) == "F32"
    assert dtype({"torch_dtype": "float32"}) == "F32"
