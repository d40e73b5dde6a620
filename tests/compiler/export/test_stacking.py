"""Experts of the golden pack, stacked into files of a bundle's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dlmc.checkpoint import Checkpoint, Stack, TensorLocation, Weight, check_weights
from dlmc.export.bundle_writer import BundleWriter
from dlmc.export.stacking import own_files, referenced, write_own_files
from dlmc.families import Overrides
from dlmc.families.llada2 import LLADA2
from dlmc_runtime.errors import CheckpointError

EXPERTS = "layers.2.mlp.experts."


def located(root: Path) -> dict[str, Weight]:
    checkpoint = Checkpoint.open(root, tokenizer=False)
    spec = LLADA2.read(checkpoint.config, {}, Overrides(mask_id=316))
    return check_weights(LLADA2, spec, checkpoint)


@pytest.fixture
def weights(goldens: Path) -> dict[str, Weight]:
    return located(goldens / "llada2")


@pytest.fixture
def sharded(goldens: Path, tmp_path: Path) -> Path:
    """The pack in two files, of which one has no experts."""
    tensors = load_file(goldens / "llada2" / "model.safetensors")
    dense = {name: array for name, array in tensors.items() if "mlp.experts" not in name}
    files = {"dense.safetensors": dense}
    files["sparse.safetensors"] = {n: a for n, a in tensors.items() if n not in dense}
    files["sparse.safetensors"]["model.norm.weight"] = dense.pop("model.norm.weight")
    for name, held in files.items():
        save_file(held, tmp_path / name)
    placed = {name: file for file, held in files.items() for name in held}
    index = '{"weight_map": {' + ", ".join(f'"{n}": "{f}"' for n, f in placed.items()) + "}}"
    (tmp_path / "model.safetensors.index.json").write_text(index)
    (tmp_path / "config.json").write_text((goldens / "llada2" / "config.json").read_text())
    return tmp_path


def test_files_without_experts_are_used_where_they_lie(sharded: Path):
    weights = located(sharded)
    kept = referenced(weights)
    assert {one.file.name for one in kept.values()} == {"dense.safetensors"}
    (held,) = own_files(weights).values()
    assert {one.name for one in held} == weights.keys() - kept.keys()
    assert "norm.weight" in {one.name for one in held}
    assert EXPERTS + "down_proj" in {one.name for one in held}


def test_a_checkpoint_without_experts_needs_no_files(weights: dict[str, Weight]):
    plain = {name: one for name, one in weights.items() if isinstance(one, TensorLocation)}
    assert referenced(plain) == plain
    assert own_files(plain) == {}


def write(weights: dict[str, Weight], output: Path, **sizes: int) -> dict[str, TensorLocation]:
    with BundleWriter(output) as bundle:
        files = {f"weights/{name}": held for name, held in own_files(weights, **sizes).items()}
        written = write_own_files(weights, files, bundle)
        bundle.root.rename(output)
    return written


def test_what_is_written_is_what_the_checkpoint_holds(
    goldens: Path, weights: dict[str, Weight], tmp_path: Path
):
    output = tmp_path / "bundle"
    written = write(weights, output, shard_bytes=200_000)
    files = sorted(path.name for path in (output / "weights").iterdir())
    assert files[0] == f"experts-00001-of-{len(files):05}.safetensors"
    assert len(files) > 3
    assert {name: one.shape for name, one in written.items()} == {
        name: one.shape for name, one in weights.items()
    }
    found = {n: a for file in files for n, a in load_file(output / "weights" / file).items()}
    stored = load_file(goldens / "llada2" / "model.safetensors")
    expert = "model.layers.2.mlp.experts.{}.{}_proj.weight"
    for e in range(16):
        both = [stored[expert.format(e, part)] for part in ("gate", "up")]
        np.testing.assert_array_equal(found[EXPERTS + "gate_up_proj"][e], np.concatenate(both))
        np.testing.assert_array_equal(
            found[EXPERTS + "down_proj"][e], stored[expert.format(e, "down")]
        )
    np.testing.assert_array_equal(found["norm.weight"], stored["model.norm.weight"])


def test_wider_types_come_first(weights: dict[str, Weight]):
    stack = weights[EXPERTS + "down_proj"]
    assert isinstance(stack, Stack)
    low = Stack(tuple(replace(part, dtype="BF16") for part in stack.parts), stack.shape)
    (held,) = own_files({EXPERTS + "down_proj": low, "norm.weight": stack.parts[0]}).values()
    assert [one.dtype for one in held] == ["F32", "BF16"]


def test_a_file_of_the_checkpoint_is_never_written_over(weights: dict[str, Weight]):
    name = "experts-00001-of-00001.safetensors"
    apart = TensorLocation(Path(name), 0, 4, "F32", (1,))
    with pytest.raises(CheckpointError, match=f"has a file {name} of its own: rename it"):
        own_files({**weights, "other": apart})


def test_a_file_that_ends_early(goldens: Path, weights: dict[str, Weight], tmp_path: Path):
    short = tmp_path / "model.safetensors"
    short.write_bytes((goldens / "llada2" / "model.safetensors").read_bytes()[:-4000])
    moved: dict[str, Weight] = {
        name: Stack(tuple(replace(p, file=short) for p in one.parts), one.shape)
        if isinstance(one, Stack)
        else replace(one, file=short)
        for name, one in weights.items()
    }
    with pytest.raises(CheckpointError, match="was cut short while it was read"):
        write(moved, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
