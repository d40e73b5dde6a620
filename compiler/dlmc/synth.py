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
    top_k_experts: int | None = None
    expert_intermediate: int | None = None

    def sizes(self, original: DenoiserConfig) -> dict[str, int]:
        """Return every size that changes, by the names of `Family.size_keys`.

        A smaller ``hidden`` keeps the head size and takes fewer heads, and keeps the ratios of
        ``intermediate`` and ``expert_intermediate`` to ``hidden`` and of ``kv_heads`` to ``heads``.
        A token uses no more experts than there are.
        """
        sizes = {name: size for name, size in vars(self).items() if size is not None}
        return self._derived(original) | self._fewer_experts(original) | sizes

    def _fewer_experts(self, original: DenoiserConfig) -> dict[str, int]:
        chosen = original.experts_per_token
        few = self.experts is not None and self.experts < chosen
        return {"top_k_experts": self.experts or chosen} if few else {}

    def _derived(self, original: DenoiserConfig) -> dict[str, int]:
        """Return the sizes that follow those of heads and of hidden states."""
        if self.hidden is None and self.heads is None:
            return {}
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
            for name, width in (
                ("intermediate", original.intermediate_size),
                ("expert_intermediate", original.expert_width),
            ):
                derived[name] = max(8, round(hidden * width / original.hidden_size / 8) * 8)
        return derived


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
        _check_stated(family, scale)
        scaled, generation = copy.deepcopy(dict(config)), copy.deepcopy(dict(generation_config))
        sizes = scale.sizes(read.denoiser)
        for name, size in sizes.items():
            for path in family.size_keys.get(name, ()):
                _put(scaled, path, size)
        if sizes:
            family.fit(scaled, read.denoiser)
        if scale.vocab is not None:
            # Its family may know the special ids of released sizes only.
            if read.mask_id is not None:
                scaled.setdefault("mask_token_id", read.mask_id)
            if not any(key == "eos_token_id" for _, key in _token_ids(scaled, generation)):
                scaled["eos_token_id"] = list(read.stop_ids)
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


def _check_stated(family: Family, scale: Scale) -> None:
    """Refuse sizes that have no key in the checkpoints of ``family``."""
    for name, size in vars(scale).items():
        if size is None or name in family.size_keys:
            continue
        option = name.replace("_", "-")
        if name == "head_dim":
            raise UsageError(
                f"{family.name} checkpoints do not state the head size",
                "give --hidden and --heads instead of --head-dim",
            )
        raise UsageError(
            f"{family.name} checkpoints do not state {option}", f"leave out --{option}"
        )


def _put(config: dict[str, Any], path: str, value: int) -> None:
    """Set the key at a dotted path, whose objects `Family.read` has found."""
    *objects, key = path.split(".")
    for name in objects:
        config = config[name]
    config[key] = value


def _token_ids(*files: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every key of special ids, with the object it lies in."""
    for values in files:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from _token_ids(value)
            elif key.endswith("_token_id"):
                yield values, key


def _move_tokens(config: dict[str, Any], generation: dict[str, Any], vocab: int) -> None:
    """Move special ids beyond ``vocab`` to the highest free ids, each to one of its own."""
    places = list(_token_ids(config, generation))
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
    for role in ("expand", "delete", "split"):
        token = getattr(spec, f"{role}_id")
        if token is not None:
            names.setdefault(token, f"<|{role}|>")
    return names


def _in_type(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return ``config`` with ``dtype`` wherever it states the type of weights."""
    return {
        key: dtype
        if key == "dtype"
        else _in_type(value, dtype)
        if isinstance(value, dict)
        else value
        for key, value in config.items()
    }


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
        config = _in_type(blueprint.config, dtype)
        write_json(folder / CONFIG, {**config, "torch_dtype": dtype})
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
