"""Writing a lowered graph: its own tensors streamed, the bundle's files linked or copied from."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from dlmc.checkpoint.safetensors_header import read_header
from dlmc.checkpoint.safetensors_writer import TensorPlan, write_safetensors
from dlmc.linking import link_or_copy
from dlmc.lowering.streamed import NIBBLE, Copied, Streamed
from dlmc_runtime.errors import BundleError, UsageError

GRAPH = "denoiser.onnx"
LOWERED = "weights/lowered.safetensors"
_MOST = 0.9  # of a file: less than this, and the rest is not worth linking

# Narrower types lie behind wider ones, so that every tensor is aligned to its own values.
_STORED = {
    ir.DataType.FLOAT: "F32",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.INT64: "I64",
    ir.DataType.INT32: "I32",
    ir.DataType.INT8: "I8",
    ir.DataType.UINT8: "U8",
    ir.DataType.INT4: "U8",
    ir.DataType.UINT4: "U8",
    ir.DataType.FLOAT8E4M3FN: "F8_E4M3",
    ir.DataType.FLOAT8E5M2: "F8_E5M2",
    ir.DataType.FLOAT4E2M1: "U8",
    ir.DataType.BOOL: "BOOL",
}


def write_model(model: ir.Model, source: Path, folder: Path) -> tuple[str, ...]:
    """Write ``denoiser.onnx`` and the weights it reads into ``folder``.

    Args:
        model: its external tensors lie below ``source``; its `Streamed` ones are made now, and
            point into `LOWERED` afterwards.
        source: the bundle's folder.
        folder: made where it is missing.

    Returns:
        The weights' files, relative to ``folder``.

    Raises:
        BundleError: a file of the bundle has the name of the one to be written.
        OSError: the disk refuses.
    """
    (folder / LOWERED).parent.mkdir(parents=True, exist_ok=True)
    _copy_from_half_read_files(model, source)
    linked = sorted(_external_files(model))
    if LOWERED in linked:
        raise BundleError(f"{source} holds a {LOWERED} of its own", "rename the checkpoint's file")
    for name in linked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(source / name, folder / name)
    own = _write_streamed(model, folder)
    proto = ir.to_proto(model)
    (folder / GRAPH).write_bytes(proto.SerializeToString(deterministic=True))
    return (*linked, *own)


def _external(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            yield value, value.const_value


def _external_files(model: ir.Model) -> set[str]:
    return {str(tensor.location) for _, tensor in _external(model)}


def copy_all(model: ir.Model) -> None:
    """Stream every external tensor out of its file, so that nothing of it is linked.

    Raises:
        UsageError: a tensor has a type that safetensors does not know.
    """
    for value, tensor in _external(model):
        if tensor.dtype not in _STORED:
            raise UsageError(f"{value.name} is {tensor.dtype.name}", "store another type")
        value.const_value = Copied(tensor)


def _copy_from_half_read_files(model: ir.Model, source: Path) -> None:
    """Stream tensors out of files that the graph reads little of.

    A quantized graph reads embeddings and norms only: a link to the file that holds them would
    bring all the weights that it no longer reads, to be hashed at every load and copied to
    wherever the engine goes.
    """
    read: Counter[str] = Counter()
    for _, tensor in _external(model):
        read[str(tensor.location)] += tensor.nbytes
    for value, tensor in _external(model):
        size = (source / tensor.location).stat().st_size
        if read[str(tensor.location)] < _MOST * size:
            value.const_value = Copied(tensor)


def _write_streamed(model: ir.Model, folder: Path) -> tuple[str, ...]:
    """Write all streamed tensors into one file and point their initializers there."""
    streamed: dict[str, tuple[ir.Value, Streamed]] = {
        name: (value, value.const_value)
        for name, value in model.graph.initializers.items()
        if isinstance(value.const_value, Streamed)
    }
    if not streamed:
        return ()
    plans = [_plan(name, tensor) for name, (_, tensor) in streamed.items()]
    order = list(dict.fromkeys(_STORED.values()))
    plans.sort(key=lambda plan: order.index(plan.dtype))

    def values(plan: TensorPlan) -> Iterator[bytes]:
        return streamed[plan.name][1].chunks()

    write_safetensors(folder / LOWERED, plans, values)
    for name, place in read_header(folder / LOWERED).items():
        value, tensor = streamed[name]
        value.const_value = ir.ExternalTensor(
            LOWERED, place.offset, place.length, tensor.dtype, shape=tensor.shape, name=name
        )
    return (LOWERED,)


def _plan(name: str, tensor: Streamed) -> TensorPlan:
    """Return how a tensor is stored: 4-bit values as bytes that hold two each."""
    shape = tuple(tensor.shape.numpy())
    packed = tensor.dtype.bitwidth == NIBBLE
    return TensorPlan(name, _STORED[tensor.dtype], (tensor.nbytes,) if packed else shape)
