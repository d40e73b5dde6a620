import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from dlmc_runtime.constraints.lexicon import Lexicon, Tree
from dlmc_runtime.errors import RequestError
from dlmc_runtime.text import TextCodec

PIECES = ["▁", "a", "▁a", "b", "▁▁", "ab", "é", "▁é", "<0xE2>", "<0x82>", "<0xAC>", "<0x20>", "x"]
LLAMA = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


def codec_of(pieces, decoder):
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.add_tokens([AddedToken("user", normalized=False)])
    return TextCodec(tokenizer, None)


def spelled(lexicon, tokens):
    first = lexicon.leading.get(tokens[0], lexicon.texts[tokens[0]])
    return first + b"".join(lexicon.texts[token] for token in tokens[1:])


@pytest.mark.parametrize(
    "decoder", [LLAMA, GEMMA, decoders.Metaspace()], ids=["strip", "plain", "meta"]
)
@given(data=st.data())
def test_a_text_is_the_bytes_of_its_tokens(decoder, data):
    codec = codec_of(PIECES, decoder)
    lexicon = Lexicon.of(codec, 99, (len(PIECES),), ())
    tokens = data.draw(st.lists(st.sampled_from(sorted(lexicon.texts)), min_size=1, max_size=6))
    text = spelled(lexicon, tokens)
    try:
        expected = text.decode()
    except UnicodeDecodeError:  # no expression matches such bytes
        return
    assert codec.decode(tokens) == expected


def test_a_byte_level_text_is_the_bytes_of_its_tokens(codec):
    lexicon = Lexicon.of(codec, 64, (60,), (63,))
    tokens = codec.encode("a é€🙂\n")
    assert spelled(lexicon, tokens).decode() == "a é€🙂\n"
    assert not lexicon.leading
    assert lexicon.leading_tree is None


def test_special_stopping_and_suppressed_ids_have_no_text():
    codec = codec_of(PIECES, GEMMA)
    lexicon = Lexicon.of(codec, 99, (3, 1), (1,))
    assert lexicon.stops == (3,)
    special = len(PIECES)
    assert not {1, 3, special} & lexicon.texts.keys()
    assert lexicon.texts[special + 1] == b"user"
    assert not Lexicon.of(codec, 5, (3,), ()).texts.keys() - set(range(5))


def test_tokens_that_decode_to_something_else_are_left_out(codec):
    lying = codec_of(["a", "b", "<0x41>"], decoders.Sequence([decoders.Fuse()]))
    assert Lexicon.of(lying, 9, (7,), ()).texts[2] == b"<0x41>"
    stripped = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])
    assert 1 not in Lexicon.of(codec_of(["a", "▁b"], stripped), 9, (7,), ()).texts


def test_a_decoder_that_is_not_known_is_refused():
    with pytest.raises(RequestError, match="decoder WordPiece"):
        Lexicon.of(codec_of(["a"], decoders.WordPiece()), 9, (7,), ())


def test_a_vocabulary_without_letters_is_refused():
    with pytest.raises(RequestError, match="letters or digits"):
        Lexicon.of(codec_of(["é"], GEMMA), 1, (7,), ())


@given(
    words=st.dictionaries(
        st.integers(0, 50), st.binary(min_size=1, max_size=4).map(lambda w: bytes(b % 3 for b in w))
    )
)
def test_a_tree_holds_every_token_once(words):
    tree = Tree.of(words)
    found, waiting = {}, [(0, b"")]
    while waiting:
        node, text = waiting.pop()
        if tree.count[node]:
            found[text] = (int(tree.count[node]), int(tree.token[node]))
        children = range(tree.first[node], tree.last[node])
        assert (np.diff(tree.byte[children.start : children.stop].astype(int)) > 0).all()
        waiting += [(child, text + bytes([tree.byte[child]])) for child in children]
    expected: dict[bytes, list[int]] = {}
    for token, word in sorted(words.items()):
        expected.setdefault(word, []).append(token)
    assert found == {word: (len(tokens), tokens[0]) for word, tokens in expected.items()}
    assert len(tree.byte) == len({word[:size] for word in expected for size in range(5)} | {b""})
    assert tree.first[0] == 1
    assert (tree.first[1:] == tree.last[:-1]).all()
    assert (tree.token[tree.count == 0] == -1).all()
