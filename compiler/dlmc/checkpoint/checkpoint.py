"""A checkpoint folder, opened and checked but not loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dlmc.checkpoint.bounded_json import read_json
from dlmc.checkpoint.safetensors_header import TensorLocation, read_header
from dlmc_runtime.errors import CheckpointError

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TEXT_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """What lies in a checkpoint folder.

    Args:
        root: the folder.
        config: contents of ``config.json``.
        generation_config: contents of ``generation_config.json``, {} where there is none.
        tensors: every tensor of the safetensors files; {} when opened without weights.
        text_files: the tokenizer and chat-template files that are there, by name.
    """

    root: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, TensorLocation] = field(default_factory=dict)
    text_files: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Path, *, weights: bool = True, tokenizer: bool = True) -> Self:
        """Read the JSON files and the headers of the weights.

        Args:
            root: a checkpoint folder.
            weights: whether to require and read safetensors files.
            tokenizer: whether to require ``tokenizer.json``.

        Raises:
            CheckpointError: a file that is needed is missing, unreadable or damaged.
        """
        if not root.is_dir():
            raise CheckpointError(f"{root} is not a folder", "give a checkpoint folder")
        if not (root / CONFIG).is_file():
            raise CheckpointError(f"{root} has no {CONFIG}", "give a checkpoint folder")
        if tokenizer and not (root / TOKENIZER).is_file():
            raise CheckpointError(
                f"{root} has no {TOKENIZER}",
                "save the tokenizer in its fast form beside the weights, or pass --no-tokenizer",
            )
        generation = root / GENERATION_CONFIG
        return cls(
            root=root,
            config=read_json(root / CONFIG),
            generation_config=read_json(generation) if generation.is_file() else {},
            tensors=_read_tensors(root) if weights else {},
            text_files={name: root / name for name in TEXT_FILES if (root / name).is_file()},
        )


def _read_tensors(root: Path) -> dict[str, TensorLocation]:
    if (root / SINGLE_FILE).is_file():
        return read_header(root / SINGLE_FILE)
    if (root / INDEX).is_file():
        return _read_shards(root)
    pickled = sorted(path.name for pattern in _PICKLED for path in root.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{root} has weights in pickled form only ({pickled[0]}), which dlmc never opens",
            "convert them to safetensors",
        )
    raise CheckpointError(
        f"{root} has neither {SINGLE_FILE} nor {INDEX}",
        "download the weights, or pass --no-weights",
    )


def _read_shards(root: Path) -> dict[str, TensorLocation]:
    """Read every shard that the index names; index and shards must agree on each tensor."""
    index = root / INDEX
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise CheckpointError(f"{index} has no weight_map of file names", "download it again")
    tensors: dict[str, TensorLocation] = {}
    for name in sorted(set(placed.values())):
        for tensor, location in read_header(_shard(root, name)).items():
            if tensor in tensors:
                where = f"{tensors[tensor].file.name} and {name}"
                raise CheckpointError(
                    f"tensor {tensor[:120]!r} is in both {where}", "download them again"
                )
            tensors[tensor] = location
    for tensor, name in placed.items():
        if tensor not in tensors or tensors[tensor].file.name != name:
            raise CheckpointError(
                f"{index} places tensor {tensor[:120]!r} in {name}, which does not hold it",
                "download both again",
            )
    return tensors


def _shard(root: Path, name: str) -> Path:
    plain = name == Path(name).name and not set(name) & set("/\\:\0")
    if not plain or not name.endswith(".safetensors"):
        raise CheckpointError(
            f"{root / INDEX} names the shard {name[:120]!r}",
            "shards are .safetensors files of the same folder",
        )
    if not (root / name).is_file():
        raise CheckpointError(f"{root} lacks the shard {name}", "download the rest of the weights")
    return root / name
