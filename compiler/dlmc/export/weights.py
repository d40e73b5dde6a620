"""From tensors in a checkpoint to initializers that point at them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dlmc.checkpoint import TensorLocation
from dlmc.checkpoint.safetensors_header import DTYPE_BITS

FOLDER = "weights"

_DTYPES = {
    "F32": ir.DataType.FLOAT,
    "F16": ir.DataType.FLOAT16,
    "BF16": ir.DataType.BFLOAT16,
}
_STATED_DTYPES = {"bfloat16": "BF16", "float16": "F16"}


def bundle_path(location: TensorLocation) -> str:
    """Return where the file of a tensor lies in the bundle."""
    return f"{FOLDER}/{location.file.name}"


def files_of(weights: Mapping[str, TensorLocation]) -> dict[str, Path]:
    """Return the checkpoint's files that hold ``weights``, by their path in the bundle."""
    return {bundle_path(location): location.file for location in weights.values()}


def imagine_weights(
    shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]
) -> dict[str, TensorLocation]:
    """Lay parameters out in a ``model.safetensors`` that does not exist.

    Args:
        shapes: shape of every parameter.
        config: ``config.json``, whose ``dtype`` the weights would have.
    """
    stated = str(config.get("dtype") or config.get("torch_dtype"))
    dtype = _STATED_DTYPES.get(stated, "F32")
    weights, offset = {}, 0
    for name, shape in shapes.items():
        length = math.prod(shape) * DTYPE_BITS[dtype] // 8
        weights[name] = TensorLocation(Path("model.safetensors"), offset, length, dtype, shape)
        offset += length
    return weights


def external_tensors(weights: Mapping[str, TensorLocation]) -> dict[str, ir.ExternalTensor]:
    """Return the initializer value of every parameter, for a graph at the bundle's root."""
    return {
        name: ir.ExternalTensor(
            bundle_path(location),
            location.offset,
            location.length,
            _DTYPES[location.dtype],
            shape=ir.Shape(location.shape),
            name=name,
        )
        for name, location in weights.items()
    }
