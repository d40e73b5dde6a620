"""Ids that only a checkpoint's tokenizer knows."""

from pathlib import Path
from typing import TYPE_CHECKING

from dlmc.checkpoint.bounded_json import read_json
from dlmc.checkpoint.checkpoint import TOKENIZER, Checkpoint
from dlmc_runtime.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MOST_DIGITS = 10
_CONFIG = "tokenizer_config.json"


def load_tokenizer(path: Path) -> "Tokenizer":
    """Load a ``tokenizer.json``; raises `CheckpointError` where it is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises nothing narrower)
        raise CheckpointError(
            f"{path} is not a tokenizer ({error})", "download it again or pass --no-tokenizer"
        ) from None


def token_id(checkpoint: Checkpoint, text: str) -> int | None:
    """Return the id of a token by its text; None where the checkpoint's tokenizer has no such.

    ``tokenizer.json`` is asked first, because it is what the runtime loads; then the list of added
    tokens in ``tokenizer_config.json``.

    Raises:
        CheckpointError: one of them is damaged.
    """
    files = checkpoint.text_files
    if TOKENIZER in files:
        found: int | None = load_tokenizer(files[TOKENIZER]).token_to_id(text)
        if found is not None:
            return found
    if _CONFIG not in files:
        return None
    added = read_json(files[_CONFIG]).get("added_tokens_decoder")
    entries = added.items() if isinstance(added, dict) else ()
    for key, entry in entries:
        named = isinstance(entry, dict) and entry.get("content") == text
        if named and key.isascii() and key.isdecimal() and len(key) <= _MOST_DIGITS:
            return int(key)
    return None
