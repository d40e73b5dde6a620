import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

from dlmc.checkpoint.safetensors_header import read_header
from dlmc.lowering.streamed import Streamed, rows
from dlmc.lowering.write import LOWERED, write_model
from dlmc_runtime.errors import BundleError

VALUES: dict[str, np.ndarray] = {
    "kept": np.arange(6, dtype=np.float32),
    "bytes": np.arange(7, dtype=np.int8),
    "nibbles": np.arange(-3, 4, dtype=np.int8),
    "wide": np.linspace(0, 1, 5, dtype=np.float32),
    "half": np.linspace(0, 1, 3, dtype=np.float16),
}
TYPES = {
    "bytes": ir.DataType.INT8,
    "nibbles": ir.DataType.INT4,
    "wide": ir.DataType.FLOAT,
    "half": ir.DataType.FLOAT16,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "bundle" / "weights").mkdir(parents=True)
    (tmp_path / "bundle" / "weights" / "a.safetensors").write_bytes(VALUES["kept"].tobytes())
    return tmp_path / "bundle"


def model(names: list[str], location: str = "weights/a.safetensors") -> ir.Model:
    """A graph without nodes whose initializers are external, streamed, or in the graph."""
    tensors: list[ir.TensorProtocol] = [ir.tensor(np.array([1, 2]), name="inline")]
    for name in names:
        values = VALUES[name]
        if name == "kept":
            tensors.append(
                ir.ExternalTensor(
                    location,
                    0,
                    values.nbytes,
                    ir.DataType.FLOAT,
                    shape=ir.Shape(values.shape),
                    name=name,
                )
            )
        else:
            pieces = [values[:2], values[2:]]
            tensors.append(
                Streamed(
                    TYPES[name], values.shape, pieces.__iter__, name, ir.tensor(VALUES["kept"])
                )
            )
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    for tensor in tensors:
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), const_value=tensor)
        value.shape = ir.Shape(tensor.shape.numpy())
        graph.register_initializer(value)
    return ir.Model(graph, ir_version=10)


def read(folder: Path, name: str) -> np.ndarray:
    """Read a tensor of a written graph as an engine would."""
    tensor = ir.load(folder / "denoiser.onnx").graph.initializers[name].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    return tensor.numpy()


def test_streamed_tensors_are_read_as_they_were_made(source, tmp_path):
    files = write_model(model(["bytes", "nibbles", "wide", "half"]), source, tmp_path / "out")
    assert files == (LOWERED,)
    for name in TYPES:
        np.testing.assert_array_equal(
            read(tmp_path / "out", name).astype(VALUES[name].dtype), VALUES[name]
        )


def test_the_file_is_one_that_safetensors_reads(source, tmp_path):
    write_model(model(["bytes", "nibbles", "wide", "half"]), source, tmp_path / "out")
    found = load_file(tmp_path / "out" / LOWERED)
    assert {name: array.dtype.name for name, array in found.items()} == {
        "bytes": "int8",
        "nibbles": "uint8",
        "wide": "float32",
        "half": "float16",
    }
    assert found["nibbles"].shape == (4,)


def test_tensors_are_aligned_to_their_values(source, tmp_path):
    write_model(model(["bytes", "nibbles", "half", "wide"]), source, tmp_path / "out")
    places = read_header(tmp_path / "out" / LOWERED)
    assert places["wide"].offset % 4 == 0
    assert places["half"].offset % 2 == 0


def test_the_bundles_file_is_shared_only_where_it_is_read(source, tmp_path):
    files = write_model(model(["kept", "wide"]), source, tmp_path / "out")
    assert files == ("weights/a.safetensors", LOWERED)
    linked = tmp_path / "out" / "weights" / "a.safetensors"
    assert linked.samefile(source / "weights" / "a.safetensors")
    assert write_model(model(["wide"]), source, tmp_path / "alone") == (LOWERED,)
    assert os.listdir(tmp_path / "alone" / "weights") == ["lowered.safetensors"]  # noqa: PTH208


def test_nothing_new_makes_no_file(source, tmp_path):
    assert write_model(model(["kept"]), source, tmp_path / "out") == ("weights/a.safetensors",)
    assert not (tmp_path / "out" / LOWERED).exists()


def test_a_disk_that_cannot_link_gets_a_copy(source, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "cross-device")

    monkeypatch.setattr(os, "link", refuse)
    write_model(model(["kept"]), source, tmp_path / "out")
    np.testing.assert_array_equal(read(tmp_path / "out", "kept"), VALUES["kept"])


def test_a_bundle_file_of_the_lowered_name_is_refused(source, tmp_path):
    (source / "weights" / "a.safetensors").rename(source / LOWERED)
    with pytest.raises(BundleError, match="of its own"):
        write_model(model(["kept", "wide"], LOWERED), source, tmp_path / "out")


def test_small_constants_stay_in_the_graph(source, tmp_path):
    write_model(model(["wide"]), source, tmp_path / "out")
    graph = ir.load(tmp_path / "out" / "denoiser.onnx").graph
    inline = graph.initializers["inline"].const_value
    assert inline is not None
    assert not isinstance(inline, ir.ExternalTensor)


def test_the_same_graph_gives_the_same_bytes(source, tmp_path):
    for name in ("one", "two"):
        write_model(model(["kept", "bytes", "wide"]), source, tmp_path / name)
    for file in ("denoiser.onnx", LOWERED):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_bfloat16_is_stored_as_such(source, tmp_path):
    made = model([])
    values = np.array([1.5, 2.25], ml_dtypes.bfloat16)
    tensor = Streamed(
        ir.DataType.BFLOAT16, (2,), lambda: iter([values]), "low", ir.tensor(VALUES["kept"])
    )
    value = ir.Value(name="low", type=ir.TensorType(tensor.dtype), const_value=tensor)
    made.graph.register_initializer(value)
    write_model(made, source, tmp_path / "out")
    assert read_header(tmp_path / "out" / LOWERED)["low"].dtype == "BF16"
    stored = ir.load(tmp_path / "out" / "denoiser.onnx").graph.initializers["low"].const_value
    assert stored is not None
    np.testing.assert_array_equal(np.concatenate(list(rows(stored))), values.astype(np.float32))


def test_a_file_of_which_little_is_read_is_copied_from(source, tmp_path):
    path = source / "weights" / "a.safetensors"
    path.write_bytes(VALUES["kept"].tobytes() + bytes(100))
    made = model(["kept", "half"])
    kept = made.graph.initializers["kept"].const_value
    assert isinstance(kept, ir.ExternalTensor)
    kept.base_dir = source
    assert write_model(made, source, tmp_path / "engine") == (LOWERED,)
    assert not (tmp_path / "engine" / "weights" / "a.safetensors").exists()
    found = load_file(tmp_path / "engine" / LOWERED)
    np.testing.assert_array_equal(found["kept"], VALUES["kept"])
    tensor = made.graph.initializers["kept"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.location == LOWERED
