"""Engines that are damaged on purpose, in one known layer, with records that fit their files."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from sealing import replace_bytes

from dlmc_runtime.bundle import ENGINE, Bundle, engine_folder, sha256_of
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.record import FileRecord

_TYPES: dict[ir.DataType, np.dtype[Any]] = {
    ir.DataType.FLOAT: np.dtype("<f4"),
    ir.DataType.BFLOAT16: np.dtype("<u2"),
}


def copy_engine(bundle: Bundle, source: str, name: str) -> Path:
    """Return the folder of a new engine with a graph and weights of its own, like ``source``'s."""
    record = bundle.engine(source)
    folder = bundle.root / engine_folder(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    plan = bundle.root / record.plan
    shutil.copy(plan, folder / "denoiser.onnx")
    shutil.copytree(plan.parent / "weights", folder / "weights")  # no links: they will be changed
    changed = record.model_copy(update={"plan": f"{engine_folder(name)}/denoiser.onnx"})
    _seal(folder, changed)
    return folder


def _seal(folder: Path, record: EngineRecord) -> None:
    """Let an engine's record state its files as they are."""
    root = folder.parent.parent
    files = {
        path.relative_to(root).as_posix(): FileRecord(
            size=path.stat().st_size, sha256=sha256_of(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ENGINE
    }
    text = record.model_copy(update={"files": files}).model_dump_json()
    (folder / ENGINE).write_text(text, encoding="utf-8")


def _reseal(folder: Path) -> None:
    _seal(folder, EngineRecord.model_validate_json((folder / ENGINE).read_bytes()))


def flip_weight(folder: Path, name: str) -> None:
    """Change the sign of the first eighth of a weight."""

    def flip(values: NDArray[Any]) -> None:
        part = values[: max(1, len(values) // 8)]
        part ^= part.dtype.type(1 << (8 * part.itemsize - 1))

    _change(folder, name, flip, bits=True)


def set_nan(folder: Path, name: str) -> None:
    """Make the first number of a weight one that is none."""

    def spoil(values: NDArray[Any]) -> None:
        values[:1] = np.iinfo(values.dtype).max  # all bits but the sign: NaN in every float type

    _change(folder, name, spoil, bits=True)


def swap_scales(folder: Path, name: str) -> None:
    """Exchange the scales of the output channels that have the largest and the smallest."""

    def swap(values: NDArray[Any]) -> None:
        size = np.abs(values.astype(np.float64)).reshape(len(values), -1).mean(1)
        pair = [int(size.argmax()), int(size.argmin())]
        values[pair] = values[pair[::-1]]

    _change(folder, f"{name}.scale", swap)


def break_mask(folder: Path, layer: int, how: str) -> None:
    """Let a layer's attention see everything (``ignored``), or one key further (``shifted``)."""
    path = folder / "denoiser.onnx"
    model = ir.load(path)
    attention = next(
        node for node in model.graph if node.name == f"layers.{layer}.self_attn.Attention"
    )
    mask = attention.inputs[3]
    assert mask is not None
    if how == "ignored":
        inverse = ir.node("Not", [mask])
        nodes = [inverse, ir.node("Or", [mask, inverse.outputs[0]])]
    else:
        last, rest = (ir.node("Slice", [mask, *_ints(model, *ends)]) for ends in _SHIFT)
        joined = ir.node("Concat", [last.outputs[0], rest.outputs[0]], attributes={"axis": -1})
        nodes = [last, rest, joined]
    for node in nodes:
        node.outputs[0].type = ir.TensorType(ir.DataType.BOOL)
        model.graph.insert_before(attention, node)
    attention.replace_input_with(3, nodes[-1].outputs[0])
    replace_bytes(path, ir.to_proto(model).SerializeToString())
    _reseal(folder)


_SHIFT = ((-1, 1 << 62), (0, -1))


def _ints(model: ir.Model, start: int, end: int) -> list[ir.Value]:
    values = []
    for name, number in (("start", start), ("end", end), ("axis", -1)):
        tensor = ir.tensor(np.array([number], np.int64), name=f"test.{name}.{start}")
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(ir.DataType.INT64), const_value=tensor
        )
        model.graph.register_initializer(value)
        values.append(value)
    return values


def _change(
    folder: Path, name: str, change: Callable[[NDArray[Any]], None], *, bits: bool = False
) -> None:
    """Change a weight in the file where it lies."""
    tensor = ir.load(folder / "denoiser.onnx").graph.initializers[name].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    dtype = _TYPES[tensor.dtype]
    if bits:
        dtype = np.dtype(f"<u{dtype.itemsize}")
    path = folder / str(tensor.location)
    data = bytearray(path.read_bytes())
    start, length = tensor.offset or 0, tensor.length or 0
    values = np.frombuffer(bytes(data[start : start + length]), dtype).copy()
    values = values.reshape(tuple(tensor.shape.numpy()))
    change(values)
    data[start : start + length] = values.tobytes()
    replace_bytes(path, bytes(data))
    _reseal(folder)
