"""Low-rank adapters (LoRA) beside a checkpoint, in the layout of PEFT."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlmc.checkpoint.bounded_json import read_json
from dlmc.checkpoint.safetensors_header import TensorLocation, read_header
from dlmc.families.keys import Keys, Supported
from dlmc.families.spec import Family, FamilySpec
from dlmc_runtime.errors import CheckpointError, UsageError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_TARGETS = ["o_proj"]
_MOST_RANK = 1 << 16

_SUPPORTED: Supported = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None,),
    "layers_to_transform": (None,),
}
_EMPTY = (
    "rank_pattern",
    "alpha_pattern",
    "exclude_modules",
    "layer_replication",
    "layers_pattern",
    "trainable_token_indices",
)


@dataclass(frozen=True)
class Adapter:
    """An adapter of the output projections of attention.

    Args:
        config: contents of ``adapter_config.json``.
        rank: rows of the inner matrix.
        scale: what the product of both matrices is multiplied with.
        tensors: its tensors; {} when read without weights.
    """

    config: Mapping[str, Any]
    rank: int
    scale: float
    tensors: Mapping[str, TensorLocation] = field(default_factory=dict)

    def applied(self, family: Family, spec: FamilySpec) -> FamilySpec:
        """Return ``spec`` with a denoiser that has this adapter.

        Raises:
            UsageError: the family has none.
        """
        if not family.takes_adapter:
            raise UsageError(
                f"dlmc knows no adapters of {family.name} checkpoints", "leave out --adapter"
            )
        rank, scale = self.rank, self.scale
        return replace(
            spec, denoiser=replace(spec.denoiser, adapter_rank=rank, adapter_scale=scale)
        )


def parse_adapter(config: Mapping[str, Any], where: str = ADAPTER_CONFIG) -> Adapter:
    """Read an adapter's configuration.

    Raises:
        CheckpointError: it is of another kind, or adapts other modules.
    """
    keys = Keys(config, where)
    keys.require(_SUPPORTED)
    for key in _EMPTY:
        if config.get(key):
            keys.refuse(f"{key!r} is not empty", "dlmc gives every layer the same rank and scale")
    targets = config.get("target_modules")
    if targets not in (_TARGETS, *_TARGETS):
        shown = str(targets)[:60]
        keys.refuse(f"'target_modules' is {shown}", "dlmc implements adapters of o_proj only")
    rank, alpha = keys.integer("r", most=_MOST_RANK), keys.number("lora_alpha")
    rooted = keys.flag("use_rslora", default=False)
    return Adapter(config, rank, alpha / (math.sqrt(rank) if rooted else rank))


def read_adapter(root: Path, name: str, *, weights: bool = True) -> Adapter:
    """Read an adapter: a folder inside the checkpoint ``root``, or any other folder.

    Raises:
        CheckpointError: there is no such folder, or a file of it is missing, damaged or of
            another kind.
    """
    folder = next((path for path in (root / name, Path(name).expanduser()) if path.is_dir()), None)
    if folder is None:
        raise CheckpointError(
            f"there is no adapter {name} in {root}", "give the name of a folder with its files"
        )
    for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if weights else (ADAPTER_CONFIG,):
        if not (folder / file).is_file():
            raise CheckpointError(f"{folder} has no {file}", "download the rest of the adapter")
    adapter = parse_adapter(read_json(folder / ADAPTER_CONFIG), str(folder / ADAPTER_CONFIG))
    tensors = read_header(folder / ADAPTER_WEIGHTS) if weights else {}
    return replace(adapter, tensors=tensors)
