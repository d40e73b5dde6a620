import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from dlmc.checkpoint import Checkpoint, token_id
from dlmc.checkpoint.token_ids import load_tokenizer
from dlmc_runtime.errors import CheckpointError


def checkpoint(
    root: Path, *, added: str | None = None, config: dict[str, Any] | None = None
) -> Checkpoint:
    (root / "config.json").write_text("{}")
    if added is not None:
        tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))  # noqa: S106
        tokenizer.add_special_tokens([AddedToken(added, special=True)])
        tokenizer.save(str(root / "tokenizer.json"))
    if config is not None:
        (root / "tokenizer_config.json").write_text(json.dumps(config))
    return Checkpoint.open(root, weights=False, tokenizer=False)


def decoder(text: str, key: str = "7") -> dict[str, Any]:
    return {"added_tokens_decoder": {key: {"content": text, "special": True}}}


def test_an_added_token(tmp_path: Path):
    found = checkpoint(tmp_path, added="<|mask|>")
    assert token_id(found, "<|mask|>") == 2
    assert token_id(found, "b") == 1
    assert token_id(found, "[MASK]") is None


def test_the_tokenizer_goes_before_its_settings(tmp_path: Path):
    assert (
        token_id(checkpoint(tmp_path, added="<|mask|>", config=decoder("<|mask|>")), "<|mask|>")
        == 2
    )


def test_settings_alone(tmp_path: Path):
    assert token_id(checkpoint(tmp_path, config=decoder("<|mask|>")), "<|mask|>") == 7


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"added_tokens_decoder": []},
        {"added_tokens_decoder": {"7": "<|mask|>"}},
        decoder("<|mask|>", "-7"),
        decoder("<|mask|>", "seven"),
        decoder("<|mask|>", "9" * 5000),
        decoder("<|mask|>", "\u0667"),
    ],
)
def test_settings_that_do_not_say(tmp_path: Path, config: dict[str, Any]):
    assert token_id(checkpoint(tmp_path, config=config), "<|mask|>") is None


def test_no_tokenizer(tmp_path: Path):
    assert token_id(checkpoint(tmp_path), "<|mask|>") is None


def test_a_damaged_tokenizer(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        load_tokenizer(path)
    with pytest.raises(CheckpointError, match="is not a tokenizer"):
        token_id(checkpoint(tmp_path), "<|mask|>")
