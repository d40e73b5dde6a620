"""Feeding and running a graph of the bundle format."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

SIZES = {"batch": 2, "block": 5, "cache": 3, "context": 8, "rows": 4}


def feeds(model: ir.Model) -> dict[str, NDArray[Any]]:
    """Return small numbers of the right types for a graph of the bundle format."""
    rng = np.random.default_rng(0)
    made: dict[str, NDArray[Any]] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = [n if isinstance(n, int) else SIZES[str(n)] for n in value.shape]
        if value.dtype == ir.DataType.FLOAT:
            made[str(value.name)] = rng.random(shape).astype(np.float32)
        elif value.dtype == ir.DataType.BOOL:
            made[str(value.name)] = np.ones(shape, bool)
        else:
            below = SIZES["batch" if value.name == "partner" else "rows"]
            made[str(value.name)] = rng.integers(0, below, shape)
    return made


def run(model: ir.Model, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return all outputs, by name, of a graph that reads the weights of a bundle."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    root = next(Path(t.base_dir) for t in tensors if isinstance(t, ir.ExternalTensor))
    with tempfile.NamedTemporaryFile(dir=root, suffix=".onnx") as file:
        file.write(ir.to_proto(model).SerializeToString())
        file.flush()
        session = onnxruntime.InferenceSession(file.name, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
