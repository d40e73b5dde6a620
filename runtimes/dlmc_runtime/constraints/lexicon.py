"""What each token adds to a text, in bytes, and all of them as one tree."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.errors import RequestError
from dlmc_runtime.text import TextCodec

Ints = NDArray[np.int64]

_KNOWN = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"})
_PLAIN = (b"a", b"1", b"{", b"x")  # tokens that may stand before another one to look at that
_BYTE = len("<0x00>")
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


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
        ids = sorted(sorted(tokens), key=tokens.__getitem__)
        texts = [tokens[token] for token in ids]
        size = np.fromiter(map(len, texts), np.int64, len(texts))
        flat = np.frombuffer(b"".join(texts), np.uint8)
        shared = _shared(flat, size)
        # A token adds a node for each byte that it does not share with the token before it: nodes
        # as they are met on a walk, which become nodes level by level.
        fresh = size - shared
        added = np.cumsum(fresh)
        count = int(fresh.sum()) + 1
        depth = np.ones(count, np.int64)
        depth[0] = 0
        depth[1:] += _ranges(shared, fresh)
        walk = np.argsort(depth, kind="stable")
        place = np.empty(count, np.int64)
        place[walk] = np.arange(count)
        byte = np.zeros(count, np.uint8)
        byte[place[1:]] = flat[_ranges(np.cumsum(size) - fresh, fresh)]
        # The parent is the last node met before that is one level higher.
        key = depth[walk] * count + walk
        parent = np.searchsorted(key, key[1:] - count) - 1
        first, last = (1 + np.searchsorted(parent, np.arange(count), side) for side in _SIDES)
        ends = place[added]
        token = np.full(count, -1, np.int64)
        token[ends[fresh > 0]] = np.array(ids, np.int64)[fresh > 0]
        return cls(byte, first, last, np.bincount(ends, minlength=count), token)


def _ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return consecutive numbers from each start on, so many of each, one after the other."""
    return np.arange(int(sizes.sum())) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)


def _shared(flat: NDArray[np.uint8], size: Ints) -> Ints:
    """Return how many bytes at its beginning each text has in common with the one before it.

    Args:
        flat: all texts, one after the other.
        size: int64 [n], of each.
    """
    begin = np.cumsum(size) - size
    shared = np.minimum(size, np.concatenate(([0], size))[:-1])
    here = _ranges(begin, shared)
    offset = here - np.repeat(begin, shared)
    there = np.repeat(np.concatenate(([0], begin))[:-1], shared) + offset
    differs = np.flatnonzero(flat[here] != flat[there])[::-1]
    # The first to differ is written last.
    shared[np.repeat(np.arange(len(size)), shared)[differs]] = offset[differs]
    return shared


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


class _ByteLevel:
    """Tokens are written in an alphabet of bytes; those that are not stand for themselves."""

    def __init__(self) -> None:
        shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = sorted({*range(256)} - {*shown})
        codes = {byte: byte for byte in shown} | {256 + i: byte for i, byte in enumerate(hidden)}
        self._codes = codes  # GPT-2's characters for bytes
        self._alphabet = frozenset(map(chr, codes))

    def __call__(self, text: str) -> bytes:
        """Return a token's bytes."""
        if self._alphabet.issuperset(text):
            return text.translate(self._codes).encode("latin-1")
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
