import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from dlmc_runtime import text
from dlmc_runtime.errors import BundleError, DlmcError, RequestError, UsageError
from dlmc_runtime.manifest import TextSpec
from dlmc_runtime.text import TextCodec


def byte_tokenizer() -> Tokenizer:
    """Bytes 0..255 in the order of the byte-level alphabet, then <s>, <mask>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<mask>")])
    return tokenizer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    return tmp_path


@pytest.fixture
def codec(root: Path) -> TextCodec:
    return TextCodec.load(
        root,
        TextSpec(tokenizer="tokenizer.json", chat_template="chat.jinja", bos_token="<s>"),  # noqa: S106
    )


def test_encode_and_decode_are_inverse(codec):
    assert codec.decode(codec.encode("Grüße 🙂\n")) == "Grüße 🙂\n"


def test_special_tokens_are_read_and_hidden_or_shown(codec):
    ids = codec.encode("<s>a")
    assert len(ids) == 2
    assert codec.decode(ids) == "a"
    assert codec.decode(ids, skip_special_tokens=False) == "<s>a"
    assert codec.token(ids[0]) == "<s>"


def test_special_tokens_are_added_only_where_asked_for():
    tokenizer = byte_tokenizer()
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", start)]
    )
    codec = TextCodec(tokenizer, None)
    plain = codec.encode("ab")
    assert len(plain) == 2
    assert codec.encode("ab", add_special_tokens=True) == [start, *plain]


def test_half_a_character_decodes_to_the_replacement_character(codec):
    assert codec.decode(codec.encode("🙂")[:2]) == "\ufffd"


@given(ids=st.lists(st.integers(-(2**40), 2**40)))
def test_decode_never_raises(ids):
    assert isinstance(TextCodec(byte_tokenizer(), None).decode(ids), str)


def test_truncation_and_padding_of_the_file_are_ignored(root, codec):
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(root / "tokenizer.json"))
    loaded = TextCodec.load(root, TextSpec(tokenizer="tokenizer.json"))
    assert loaded.encode("abc") == codec.encode("abc")


def test_chat_renders_the_template(codec):
    messages = [{"role": "user", "content": "hi"}]
    assert codec.has_template
    assert codec.chat(messages) == "<s>user: hi\nassistant:"
    assert codec.chat(messages, add_generation_prompt=False) == "<s>user: hi\n"


def test_chat_takes_tools_and_variables(root):
    (root / "chat.jinja").write_text(
        "{{ tools[0].function.name }} {{ enable_thinking }} {{ messages[0].content[0].text }}"
    )
    codec = TextCodec.load(root, TextSpec(tokenizer="tokenizer.json", chat_template="chat.jinja"))
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert codec.chat(messages, tools=tools, enable_thinking=True) == "f True hi"
    assert codec.template_reads == {"tools", "enable_thinking", "messages"}


def test_chat_refuses_what_is_no_tool_and_no_text(codec):
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(UsageError, match="tools are not a list"):
        codec.chat(messages, tools={"name": "f"})
    with pytest.raises(UsageError, match="when is of type object"):
        codec.chat(messages, when=object())
    with pytest.raises(RequestError, match="this version takes text only"):
        codec.chat([{"role": "user", "content": [{"type": "image", "url": "x"}]}])


def test_special_tokens_in_a_message_are_special_as_they_are_with_hugging_face(codec):
    prompt = codec.chat([{"role": "user", "content": "<s>"}], add_generation_prompt=False)
    assert codec.encode(prompt).count(codec.encode("<s>")[0]) == 2  # the template wrote the other


def test_a_template_that_is_not_there_reads_nothing(root):
    assert TextCodec.load(root, TextSpec(tokenizer="tokenizer.json")).template_reads == frozenset()


def test_chat_without_a_template_says_so(root):
    codec = TextCodec.load(root, TextSpec(tokenizer="tokenizer.json"))
    assert not codec.has_template
    with pytest.raises(DlmcError, match="no chat template"):
        codec.chat([])


@pytest.mark.parametrize("messages", ["hi", ["hi"], [["role", "user"]], {"role": "user"}])
def test_what_is_no_conversation_is_a_usage_error(codec, messages):
    with pytest.raises(UsageError, match="not a list of mappings"):
        codec.chat(messages)


def test_lone_surrogates_are_a_usage_error(codec):
    with pytest.raises(UsageError, match="not valid Unicode at character 1"):
        codec.encode("a\udcff")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not a tokenizer"),
        (json.dumps({"version": "1.0"}).encode(), "is not a tokenizer"),
        (b"\xff\xfe", "is not UTF-8 at byte 0"),
        (None, "cannot be read"),
    ],
)
def test_a_broken_tokenizer_is_one_sentence(root, content, words):
    path = root / "tokenizer.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleError, match=f"^tokenizer.json {words}"):
        TextCodec.load(root, TextSpec(tokenizer="tokenizer.json"))


def test_a_large_tokenizer_is_refused(root, monkeypatch):
    monkeypatch.setattr(text, "MAX_TOKENIZER_BYTES", 10)
    with pytest.raises(BundleError, match="larger than 10 bytes"):
        TextCodec.load(root, TextSpec(tokenizer="tokenizer.json"))


def test_added_tokens_and_the_template_can_be_read(codec):
    assert set(codec.added_tokens) == {"<s>", "<mask>"}
    assert codec.encode("<mask>") == [codec.added_tokens["<mask>"]]
    assert codec.special_tokens == {"<s>", "<mask>"}
    assert "add_generation_prompt" in codec.template_source
    assert TextCodec(byte_tokenizer(), None).template_source == ""


def test_others_go_on_while_a_long_text_is_encoded(codec):
    ticks: list[None] = []
    over = threading.Event()
    long = "a" * 500_000

    def meanwhile():
        before = len(ticks)
        assert len(codec.encode(long)) == len(long)
        return len(ticks) - before

    def tick():
        while not over.wait(0.001):
            ticks.append(None)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        assert any(meanwhile() > 5 for _ in range(50))  # the others may not always have a turn
    finally:
        over.set()
        thread.join()
