"""A checkpoint's tokenizer and chat template, checked and ready to be written."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlmc.checkpoint.bounded_json import read_json
from dlmc.checkpoint.checkpoint import Checkpoint
from dlmc.checkpoint.token_ids import load_tokenizer
from dlmc_runtime.errors import CheckpointError
from dlmc_runtime.manifest import TextSpec

_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_FOLDER = "tokenizer"
_KEPT = (_TOKENIZER, _CONFIG)


@dataclass(frozen=True)
class Text:
    """The text side of a bundle.

    Attributes:
        spec: what the manifest says about it.
        copies: files to copy, by their name in the bundle.
        template: the chat template, absent for base models.
        warning: what is odd about the tokenizer; empty where nothing is.
    """

    spec: TextSpec
    copies: Mapping[str, Path]
    template: str | None
    warning: str = ""


def read_text(checkpoint: Checkpoint, vocab_size: int) -> Text:
    """Read what the checkpoint says about text.

    Args:
        checkpoint: opened with its tokenizer.
        vocab_size: rows of the embedding, which the tokenizer's ids must index.

    Raises:
        CheckpointError: the tokenizer or the template is damaged.
    """
    files = checkpoint.text_files
    config = read_json(files[_CONFIG]) if _CONFIG in files else {}
    template = _read_template(files, config)
    spec = TextSpec(
        tokenizer=f"{_FOLDER}/{_TOKENIZER}",
        chat_template=None if template is None else f"{_FOLDER}/{_TEMPLATE}",
        bos_token=_token(config.get("bos_token")),
        eos_token=_token(config.get("eos_token")),
    )
    copies = {f"{_FOLDER}/{name}": files[name] for name in _KEPT if name in files}
    return Text(spec, copies, template, _check_tokenizer(files[_TOKENIZER], vocab_size))


def _check_tokenizer(path: Path, vocab_size: int) -> str:
    """Load the tokenizer once, as every run will, and compare its ids with the embedding."""
    vocabulary = load_tokenizer(path).get_vocab(with_added_tokens=True)
    highest = max(vocabulary.values(), default=0)
    if highest < vocab_size:
        return ""
    return f"the tokenizer has ids up to {highest}, the model knows ids below {vocab_size}"


def _read_template(files: Mapping[str, Path], config: Mapping[str, Any]) -> str | None:
    """Return the chat template from the first place that has one, in the order of transformers."""
    if _TEMPLATE in files:
        try:
            return files[_TEMPLATE].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{files[_TEMPLATE]} cannot be read ({error})", "download it again"
            ) from None
    if "chat_template.json" in files:
        path = files["chat_template.json"]
        return _default_template(read_json(path).get("chat_template"), path)
    return _default_template(config.get("chat_template"), files.get(_CONFIG, Path(_CONFIG)))


def _default_template(value: Any, path: Path) -> str | None:
    """Pick the template out of a JSON value: a string, or a list of named ones."""
    if value is None or isinstance(value, str):
        return value
    try:
        named = {entry["name"]: entry["template"] for entry in value}
    except (TypeError, KeyError):
        named = {}
    chosen = next(iter(named.values())) if len(named) == 1 else named.get("default")
    if not isinstance(chosen, str):
        raise CheckpointError(
            f"{path}: 'chat_template' is neither a text nor a list with one named default",
            f"write the template to use to {_TEMPLATE} beside it",
        )
    return chosen


def _token(value: Any) -> str | None:
    """Return a special token's text, which is a string or an object that holds it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
