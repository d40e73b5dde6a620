import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from dlmc.checkpoint import Checkpoint
from dlmc.export.text import read_text
from dlmc_runtime.errors import CheckpointError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    vocabulary = {f"t{index}": index for index in range(10)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="t0")).save(  # noqa: S106
        str(tmp_path / "tokenizer.json")
    )
    return tmp_path


def read(root: Path, vocab_size: int = 10):
    return read_text(Checkpoint.open(root, weights=False), vocab_size)


def settings(root: Path, **values: object) -> None:
    (root / "tokenizer_config.json").write_text(json.dumps(values))


def test_a_tokenizer_alone_is_enough(root):
    text = read(root)
    assert text.spec.tokenizer == "tokenizer/tokenizer.json"
    assert text.spec.chat_template is None
    assert text.template is None
    assert text.copies == {"tokenizer/tokenizer.json": root / "tokenizer.json"}
    assert not text.warning


def test_settings_are_kept_and_special_tokens_read(root):
    begin, end = "<s>", {"content": "</s>", "lstrip": False}
    settings(root, bos_token=begin, eos_token=end)
    text = read(root)
    assert (text.spec.bos_token, text.spec.eos_token) == ("<s>", "</s>")
    assert "tokenizer/tokenizer_config.json" in text.copies


@pytest.mark.parametrize("value", [None, 3, {"id": 3}, ["<s>"]])
def test_odd_special_tokens_are_none(root, value):
    settings(root, bos_token=value)
    assert read(root).spec.bos_token is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{{ a }}", "{{ a }}"),
        (None, None),
        ([{"name": "only", "template": "{{ b }}"}], "{{ b }}"),
        (
            [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ c }}"}],
            "{{ c }}",
        ),
    ],
)
def test_the_template_comes_out_of_the_settings(root, value, expected):
    settings(root, chat_template=value)
    assert read(root).template == expected


def test_a_template_file_wins(root):
    settings(root, chat_template="settings")
    (root / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert read(root).template == "json"
    (root / "chat_template.jinja").write_text("jinja äöü", encoding="utf-8")
    text = read(root)
    assert text.template == "jinja äöü"
    assert text.spec.chat_template == "tokenizer/chat_template.jinja"


@pytest.mark.parametrize(
    "value",
    [
        3,
        [],
        ["text"],
        [{"name": "a"}],
        [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}],
        [{"name": "default", "template": 3}],
    ],
)
def test_a_template_that_cannot_be_told_is_refused(root, value):
    settings(root, chat_template=value)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: 'chat_template'"):
        read(root)


def test_a_template_that_is_no_text_is_refused(root):
    (root / "chat_template.jinja").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read"):
        read(root)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"model": {"type": "Nothing"}}', b"\xff"])
def test_a_damaged_tokenizer_is_refused(root, content):
    (root / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
        read(root)


def test_ids_beyond_the_embedding_are_a_warning(root):
    assert "ids up to 9, the model knows ids below 9" in read(root, 9).warning
    assert not read(root, 11).warning
