"""What each token adds to a text, in bytes, and all of them as one tree."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.errors import RequestError
from dlmc_runtime.text import TextCodec

Ints = NDArray[np.int64]

_KNOWN = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"})
_PLAIN = (b"a", b"1", b"{", b"x")  # tokens that may stand before another one to look at that
_BYTE = len("<0x00>")


@dataclass(frozen=True)
class Tree:
    """Tokens by their bytes: node 0 is the root, children follow one another, the shorter first.

    Attributes:
        byte: uint8 [N], what leads to a node.
        first, last: int64 [N], from the first child of a node to one past its last.
        count: int64 [N], tokens that end at a node.
        token: int64 [N], the first of them; -1 where there is none.
    """

    byte: NDArray[np.uint8]
    first: Ints
    last: Ints
    count: Ints
    token: Ints

    @classmethod
    def of(cls, tokens: Mapping[int, bytes]) -> "Tree":
        """Arrange tokens, none of which is empty."""
        ordered = sorted((text, token) for token, text in tokens.items())
        level: list[tuple[int, int, int]] = [(0, len(ordered), 0)]  # tokens from, to, depth
        byte, first, last, count, ends = [0], [0], [0], [0], [-1]
        node = 0
        while node < len(level):
            begin, end, depth = level[node]
            while begin < end and len(ordered[begin][0]) == depth:
                if not count[node]:
                    ends[node] = ordered[begin][1]
                count[node] += 1
                begin += 1
            first[node] = len(level)
            while begin < end:
                head = ordered[begin][0][depth]
                stop = begin + 1
                while stop < end and ordered[stop][0][depth] == head:
                    stop += 1
                level.append((begin, stop, depth + 1))
                for column, value in ((byte, head), (first, 0), (last, 0), (count, 0), (ends, -1)):
                    column.append(value)
                begin = stop
            last[node] = len(level)
            node += 1
        numbers = (np.array(column, np.int64) for column in (first, last, count, ends))
        return cls(np.array(byte, np.uint8), *numbers)


@dataclass(frozen=True)
class Lexicon:
    """The tokens that may make up a text.

    Attributes:
        size: how many ids a vocabulary has.
        texts: what a token adds to a text; ids that are missing add what cannot be told, or
            nothing.
        leading: the same for tokens that add something else at the beginning of a text.
        stops: ids that end a text.
        tree: of ``texts``.
        leading_tree: of the tokens as they begin a text; None where they are the same.
    """

    size: int
    texts: dict[int, bytes]
    leading: dict[int, bytes]
    stops: tuple[int, ...]
    tree: Tree
    leading_tree: Tree | None

    @classmethod
    def of(
        cls, codec: TextCodec, size: int, stops: Sequence[int], suppressed: Iterable[int]
    ) -> "Lexicon":
        """Read a tokenizer.

        Args:
            codec: holds it.
            size: of the vocabulary; ids from there on cannot be predicted.
            stops: ids that end a text.
            suppressed: ids that cannot be predicted.

        Raises:
            RequestError: the tokenizer joins tokens in a way that is not known.
        """
        never = frozenset(suppressed)
        ends = tuple(token for token in stops if token not in never)
        texts = {
            token: text
            for token, text in _texts(codec).items()
            if text and token < size and token not in never and token not in ends
        }
        texts = _as_decoded(texts, codec)
        leading = _leading(texts, codec)
        begun = {token: text for token, text in {**texts, **leading}.items() if text}
        return cls(size, texts, leading, ends, Tree.of(texts), Tree.of(begun) if leading else None)


def _texts(codec: TextCodec) -> dict[int, bytes]:
    """Return the bytes of each token that is not special, as its decoder makes them."""
    described: dict[str, Any] = json.loads(codec.describe())
    decoder = described.get("decoder") or {}
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    unknown = [kind for kind in kinds if kind not in _KNOWN]
    if unknown:
        raise RequestError(
            f"a constraint cannot follow the tokenizer's decoder {unknown[0]}",
            "ask for free text, and check it",
        )
    special = {added["id"] for added in described.get("added_tokens", []) if added["special"]}
    read = _ByteLevel() if "ByteLevel" in kinds else _Pieces(steps)
    return {token: read(text) for text, token in codec.vocabulary().items() if token not in special}


@cache
def _alphabet() -> dict[str, int]:
    """Return GPT-2's characters for bytes."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }


class _ByteLevel:
    """Tokens are written in an alphabet of bytes; those that are not stand for themselves."""

    def __call__(self, text: str) -> bytes:
        """Return a token's bytes."""
        alphabet = _alphabet()
        if all(one in alphabet for one in text):
            return bytes(alphabet[one] for one in text)
        return text.encode()


class _Pieces:
    """Tokens are text in which something stands for spaces, or ``<0x0A>`` for a byte."""

    def __init__(self, steps: Sequence[Mapping[str, Any]]) -> None:
        self.bytes = any(step.get("type") == "ByteFallback" for step in steps)
        self.replaced: list[tuple[str, str]] = []
        for step in steps:
            if step.get("type") == "Metaspace":
                self.replaced.append((step["replacement"], " "))
            if step.get("type") == "Replace" and "String" in step["pattern"]:
                self.replaced.append((step["pattern"]["String"], step["content"]))

    def __call__(self, text: str) -> bytes:
        """Return a token's bytes."""
        if self.bytes and len(text) == _BYTE and text.startswith("<0x") and text.endswith(">"):
            try:
                return bytes((int(text[3:5], 16),))
            except ValueError:
                pass
        for old, new in self.replaced:
            text = text.replace(old, new)
        return text.encode()


def _as_decoded(texts: dict[int, bytes], codec: TextCodec) -> dict[int, bytes]:
    """Keep the tokens that the decoder turns into what is expected of them.

    Raises:
        RequestError: there is no token to look at others behind.
    """
    plain = next((token for token, text in texts.items() if text in _PLAIN), None)
    if plain is None:
        raise RequestError(
            "a constraint needs a vocabulary with letters or digits",
            "ask for free text, and check it",
        )
    whole = {token: text.decode() for token, text in texts.items() if _is_text(text)}
    before = texts[plain].decode()
    shown = codec.decode_each([[plain, token] for token in whole])
    wrong = {
        token
        for (token, text), found in zip(whole.items(), shown, strict=True)
        if found != before + text
    }
    return {token: text for token, text in texts.items() if token not in wrong}


def _leading(texts: Mapping[int, bytes], codec: TextCodec) -> dict[int, bytes]:
    """Return what tokens add at the beginning of a text, where that is something else."""
    spaced = [token for token, text in texts.items() if text.startswith(b" ") and _is_text(text)]
    shown = codec.decode_each([[token] for token in spaced])
    found = zip(spaced, shown, strict=True)
    return {token: text.encode() for token, text in found if text.encode() != texts[token]}


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
