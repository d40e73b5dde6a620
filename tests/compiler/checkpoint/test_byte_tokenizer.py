from hypothesis import given
from hypothesis import strategies as st

from dlmc.checkpoint.byte_tokenizer import BYTES, byte_tokenizer

SPECIAL = {5: "<|mask|>", 280: "<|endoftext|>"}
TOKENIZER = byte_tokenizer(290, SPECIAL)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str):
    ids = TOKENIZER.encode(text).ids
    assert len(ids) == len(text.encode())
    assert TOKENIZER.decode(ids) == text


def test_special_tokens_have_their_ids():
    assert TOKENIZER.encode("<|mask|>a<|endoftext|>").ids[::2] == [5, 280]
    assert TOKENIZER.decode([5, 280]) == ""
    assert TOKENIZER.decode([5], skip_special_tokens=False) == "<|mask|>"


def test_every_id_has_a_text():
    texts = {TOKENIZER.id_to_token(token) for token in range(290)}
    assert None not in texts
    assert len(texts) == 290
    assert TOKENIZER.id_to_token(289) == "<|reserved_289|>"


def test_smallest_vocabulary():
    tokenizer = byte_tokenizer(BYTES + 1, {0: "<|mask|>"})
    assert tokenizer.get_vocab_size() == BYTES + 1
    assert tokenizer.encode("<|mask|>").ids == [0]
