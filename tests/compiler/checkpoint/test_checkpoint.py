import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dlmc.checkpoint import Checkpoint
from dlmc_runtime.errors import CheckpointError

ARRAYS = {name: np.full((2, 2), index, np.float32) for index, name in enumerate("abc")}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder without weights."""
    (tmp_path / "config.json").write_text('{"architectures": ["LLaDAModelLM"]}')
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def write_shards(folder: Path, weight_map: object) -> None:
    save_file({"a": ARRAYS["a"], "b": ARRAYS["b"]}, folder / FIRST)
    save_file({"c": ARRAYS["c"]}, folder / SECOND)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_one_file(folder: Path):
    save_file(ARRAYS, folder / "model.safetensors")
    (folder / "generation_config.json").write_text('{"eos_token_id": 3}')
    (folder / "chat_template.jinja").write_text("")
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.config == {"architectures": ["LLaDAModelLM"]}
    assert checkpoint.generation_config == {"eos_token_id": 3}
    assert checkpoint.tensors.keys() == ARRAYS.keys()
    assert checkpoint.text_files.keys() == {"tokenizer.json", "chat_template.jinja"}


def test_shards(folder: Path):
    write_shards(folder, {"a": FIRST, "b": FIRST, "c": SECOND})
    checkpoint = Checkpoint.open(folder)
    assert {name: where.file.name for name, where in checkpoint.tensors.items()} == {
        "a": FIRST,
        "b": FIRST,
        "c": SECOND,
    }
    assert checkpoint.generation_config == {}


def test_links_into_a_download_cache(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    blob = tmp_path_factory.mktemp("blobs") / "0123"
    save_file(ARRAYS, blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert Checkpoint.open(folder).tensors["a"].file == folder / "model.safetensors"


def test_parts_that_are_not_wanted(folder: Path):
    (folder / "tokenizer.json").unlink()
    checkpoint = Checkpoint.open(folder, weights=False, tokenizer=False)
    assert (checkpoint.tensors, checkpoint.text_files) == ({}, {})


@pytest.mark.parametrize(
    ("weight_map", "sentence"),
    [
        ({"a": FIRST, "b": FIRST, "c": "model-3.safetensors"}, "lacks the shard model-3"),
        ({"a": FIRST, "b": FIRST, "c": FIRST}, f"places tensor 'c' in {FIRST}, which does not"),
        ({"a": FIRST, "d": SECOND}, f"places tensor 'd' in {SECOND}, which does not hold it"),
        ({"a": f"../{FIRST}"}, "names the shard '../model"),
        ({"a": f"/tmp/{FIRST}"}, "names the shard '/tmp"),  # noqa: S108
        ({"a": f"x\\{FIRST}"}, "names the shard"),
        ({"a": ".."}, "names the shard"),
        ({"a": ""}, "names the shard"),
        ({"a": "pytorch_model.bin"}, "shards are .safetensors files of the same folder"),
        ({"a": 3}, "has no weight_map of file names"),
        (None, "has no weight_map of file names"),
        ([FIRST], "has no weight_map of file names"),
    ],
)
def test_bad_indexes(folder: Path, weight_map: object, sentence: str):
    write_shards(folder, weight_map)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    assert sentence in str(caught.value)


def test_a_tensor_in_two_shards(folder: Path):
    write_shards(folder, {"a": FIRST, "b": FIRST, "c": SECOND})
    save_file({"c": ARRAYS["c"], "a": ARRAYS["a"]}, folder / SECOND)
    with pytest.raises(CheckpointError, match=f"tensor 'a' is in both {FIRST} and {SECOND}"):
        Checkpoint.open(folder)


def test_truncated_weights(folder: Path):
    save_file(ARRAYS, folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "last.ckpt"])
def test_pickles_are_never_opened(folder: Path, name: str):
    (folder / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"pickled form only .{name}.*convert them"):
        Checkpoint.open(folder)


def test_no_weights(folder: Path):
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor .*--no-weights"):
        Checkpoint.open(folder)


def test_no_tokenizer(folder: Path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json: .*--no-tokenizer"):
        Checkpoint.open(folder)


def test_no_config(folder: Path):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        Checkpoint.open(folder)


@pytest.mark.parametrize("name", ["missing", "config.json"])
def test_no_folder(folder: Path, name: str):
    with pytest.raises(CheckpointError, match="is not a folder"):
        Checkpoint.open(folder / name)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json(folder: Path, name: str):
    save_file(ARRAYS, folder / "model.safetensors")
    (folder / name).write_text("{")
    with pytest.raises(CheckpointError, match=f"{name} is not valid JSON"):
        Checkpoint.open(folder)
