"""Random checkpoints with the keys, names and shapes of real ones, smaller where asked.

They let a shape be exported, built and timed before 16 GB of weights are downloaded.
"""

import copy
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlmc.checkpoint.byte_tokenizer import BYTES, CHAT_TEMPLATE, byte_tokenizer
from dlmc.checkpoint.checkpoint import CONFIG, GENERATION_CONFIG, TOKENIZER
from dlmc.checkpoint.random_weights import random_weights
from dlmc.checkpoint.safetensors_writer import TensorPlan, write_json, write_shards
from dlmc.checkpoint.weights import tensor_shapes
from dlmc.denoiser.config import DenoiserConfig
from dlmc.families import Family, FamilySpec, Overrides
from dlmc_runtime.errors import DlmcError, UsageError

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
SHARD_BYTES = 4_000_000_000


@dataclass(frozen=True)
class Scale:
    """Sizes that replace those of a configuration; None lets them follow the others."""

    layers: int | None = None
    hidden: int | None = None
    intermediate: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    positions: int | None = None
    experts: int | None = None
    expert_intermediate: int | None = None

    def sizes(self, original: DenoiserConfig) -> dict[str, int]:
        """Return every size that changes, by the names of `Family.size_keys`.

        A smaller ``hidden`` keeps the head size and takes fewer heads, and keeps the ratios of
        ``intermediate`` and ``expert_intermediate`` to ``hidden`` and of ``kv_heads`` to ``heads``.
        """
        sizes = {name: size for name, size in vars(self).items() if size is not None}
        if self.hidden is None and self.heads is None:
            return sizes
        hidden = self.hidden or original.hidden_size
        heads = self.heads or _heads(original, hidden)
        wanted = max(1, original.num_key_value_heads * heads // original.num_attention_heads)
        derived = {
            "heads": heads,
            "kv_heads": max(n for n in range(1, wanted + 1) if heads % n == 0),
        }
        head_dim = min(original.head_dim, hidden // heads // 2 * 2)
        if head_dim:
            derived["head_dim"] = head_dim
        if self.hidden is not None:
            ratio = hidden / original.hidden_size
            for name, width in _widths(original).items():
                derived[name] = max(8, round(width * ratio / 8) * 8)
        return derived | sizes


def _widths(original: DenoiserConfig) -> dict[str, int]:
    """Return the widths of feed-forward layers, by the names of `Family.size_keys`."""
    widths = {"intermediate": original.intermediate_size}
    if original.moe is not None:
        widths["expert_intermediate"] = original.moe.width
    elif original.gemma is not None:
        widths["expert_intermediate"] = original.gemma.expert_intermediate_size
    return widths


def _heads(original: DenoiserConfig, hidden: int) -> int:
    """Return the most heads, in proportion to ``hidden``, that split it into even parts."""
    wanted = max(1, original.num_attention_heads * hidden // original.hidden_size)
    return next((n for n in range(wanted, 0, -1) if hidden % (2 * n) == 0), 1)


@dataclass(frozen=True)
class Blueprint:
    """The configuration files of a checkpoint to be written, and how their family reads them."""

    family: Family
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    spec: FamilySpec

    @classmethod
    def of(
        cls,
        family: Family,
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
        scale: Scale,
    ) -> "Blueprint":
        """Scale a configuration.

        Raises:
            UsageError: a size has no key of its own in this family, or the vocabulary has no
                room for bytes and special tokens.
            CheckpointError: the family refuses the configuration, scaled or not.
        """
        read = family.read(config, generation_config, Overrides())
        original = read.denoiser
        for name in ("kv_heads", "intermediate", "positions", "experts", "expert_intermediate"):
            if getattr(scale, name) is not None and name not in family.size_keys:
                raise UsageError(
                    f"{family.name} checkpoints do not state {name.replace('_', '-')}",
                    f"leave out --{name.replace('_', '-')}",
                )
        if scale.head_dim is not None and "head_dim" not in family.size_keys:
            raise UsageError(
                f"{family.name} checkpoints do not state the head size",
                "give --hidden and --heads instead of --head-dim",
            )
        scaled, generation = copy.deepcopy(dict(config)), copy.deepcopy(dict(generation_config))
        for name, size in scale.sizes(original).items():
            for key in family.size_keys.get(name, ()):
                _set(scaled, key, size)
        for part in (scaled, scaled.get("text_config")):
            if isinstance(part, dict):
                _fit_layers(part, original.num_hidden_layers, scale.layers)
                _fit_experts(part, scale.experts)
        if scale.vocab is not None:
            if family.mask_text is not None:  # its family knows the mask of released sizes only
                scaled.setdefault("mask_token_id", read.mask_id)
            _move_tokens(scaled, generation, scale.vocab)
        spec = family.read(scaled, generation, Overrides())
        needed = BYTES + len(special_tokens(spec, family))
        if spec.denoiser.vocab_size < needed:
            raise UsageError(
                f"a vocabulary of {spec.denoiser.vocab_size} is too small",
                f"bytes and special tokens need {needed}",
            )
        return cls(family, scaled, generation, spec)

    def tensors(self, dtype: str) -> list[TensorPlan]:
        """Return the tensors of the checkpoint in the network's order."""
        shapes = tensor_shapes(self.family, self.spec)
        return [TensorPlan(name, DTYPES[dtype], shape) for name, shape in shapes.items()]


def _set(config: dict[str, Any], key: str, size: int) -> None:
    """Set a key; dots lead into objects."""
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    config[last] = size


def _fit_layers(config: dict[str, Any], before: int, layers: int | None) -> None:
    """Cut what is stated layer by layer: the last layers stay, of which one may be special."""
    if layers is None or layers > before:
        return
    for key, value in config.items():
        if isinstance(value, list) and len(value) == before:
            config[key] = value[-layers:]
    if config.get("first_k_dense_replace"):  # of a network with experts, some layers have them
        config["first_k_dense_replace"] = min(config["first_k_dense_replace"], layers - 1)


def _fit_experts(config: dict[str, Any], experts: int | None) -> None:
    """Let fewer experts be used than there are, and form groups that they fill."""
    if experts is None:
        return
    for key in _OF_EXPERTS:
        if config.get(key):
            config[key] = min(config[key], experts)
    while config.get("n_group", 1) > 1 and not _grouped(config, experts):
        config["n_group"] //= 2
        config["topk_group"] = max(1, config["topk_group"] // 2)


_OF_EXPERTS = ("num_experts_per_tok", "top_k_experts", "expert_capacity")


def _grouped(config: Mapping[str, Any], experts: int) -> bool:
    """Return whether groups hold two experts, and those that are kept as many as are used."""
    size: int = experts // config["n_group"]
    used: int = config["num_experts_per_tok"]
    kept: int = config["topk_group"]
    return size > 1 and experts % size == 0 and size * kept >= used


def _move_tokens(config: dict[str, Any], generation: dict[str, Any], vocab: int) -> None:
    """Move special ids beyond ``vocab`` to the highest free ids, each to one of its own."""
    places = [
        (file, key) for file in (config, generation) for key in file if key.endswith("_token_id")
    ]
    ids = {token for file, key in places for token in _as_list(file[key])}
    outside = sorted((token for token in ids if token >= vocab), reverse=True)
    free = (token for token in range(vocab - 1, -1, -1) if token not in ids)
    moved = dict(zip(outside, free, strict=False))
    for file, key in places:
        value = [moved.get(token, token) for token in _as_list(file[key])]
        file[key] = value if isinstance(file[key], list) else value[0] if value else None


def _as_list(value: Any) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]


def special_tokens(spec: FamilySpec, family: Family) -> dict[int, str]:
    """Return a text for every special id; one id in several roles has the first one's."""
    names: dict[int, str] = {}
    if spec.mask_id is not None:
        names[spec.mask_id] = family.mask_text or "<|mask|>"
    for index, token in enumerate(spec.stop_ids):
        names.setdefault(token, f"<|stop_{index}|>" if index else "<|endoftext|>")
    names.setdefault(spec.pad_id, "<|pad|>")
    if spec.bos_id is not None:
        names.setdefault(spec.bos_id, "<|startoftext|>")
    if spec.expand_id is not None:
        names.setdefault(spec.expand_id, "<|expand|>")
    return names


def write_checkpoint(
    blueprint: Blueprint,
    output: Path,
    *,
    dtype: str = "bfloat16",
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a checkpoint with random weights; it has its name only once it is whole.

    Raises:
        UsageError: ``output`` exists.
        DlmcError: the disk refuses.
    """
    spec = blueprint.spec
    special = special_tokens(spec, blueprint.family)
    with _staged(output) as folder:
        write_json(folder / CONFIG, {**blueprint.config, "torch_dtype": dtype})
        if blueprint.generation_config:
            write_json(folder / GENERATION_CONFIG, blueprint.generation_config)
        tokenizer = byte_tokenizer(spec.denoiser.vocab_size, special)
        (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special[spec.bos_id] if spec.bos_id is not None else None,
            "eos_token": special[spec.stop_ids[0]] if spec.stop_ids else None,
            "pad_token": special[spec.pad_id],
            "mask_token": special[spec.mask_id] if spec.mask_id is not None else None,
            "chat_template": CHAT_TEMPLATE,
        }
        write_json(folder / "tokenizer_config.json", tokenizer_config)
        write_shards(folder, blueprint.tensors(dtype), random_weights(seed), shard_bytes)


@contextmanager
def _staged(output: Path) -> Iterator[Path]:
    """Yield a hidden sibling of ``output`` that takes its name at the end, or disappears."""
    if output.exists():
        raise UsageError(f"{output} exists", "delete it or choose another output")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
    except OSError as error:
        raise DlmcError(f"cannot write {output} ({error.strerror})", "check the path") from None
    try:
        folder.chmod(0o755)
        yield folder
        folder.rename(output)
    except OSError as error:
        raise DlmcError(f"cannot write {output} ({error.strerror})", "free some space") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
