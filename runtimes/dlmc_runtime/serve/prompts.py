"""From a conversation to the token ids of a prompt, in which nobody but the template gives orders.

A special token that someone wrote into a message, a tool or a variable would be that token in the
prompt: a turn that ends early, or a turn of somebody else. Here it stays the text that it is: a cut
goes through it, and what is on either side of a cut is tokenized by itself.
"""

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dlmc_runtime.serve.parsers.formats import Format
from dlmc_runtime.text import TextCodec

_LONG = 16  # characters a token, more than tokens have on average


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        ids: its tokens.
        text: as the template rendered it.
    """

    ids: list[int]
    text: str


@lru_cache(maxsize=64)
def _pattern(names: frozenset[str]) -> re.Pattern[str] | None:
    if not names:
        return None
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def cut(text: str, names: Collection[str], mark: str) -> str:
    """Return ``text`` with ``mark`` after the first character of each of ``names`` in it."""
    pattern = _pattern(frozenset(names))
    if pattern is None:
        return text
    pieces, done, at = [], 0, 0
    while (found := pattern.search(text, at)) is not None:
        at = found.start() + 1
        pieces.append(text[done:at])
        done = at
    return mark.join([*pieces, text[done:]])


def plain(codec: TextCodec, text: str, most: int) -> list[int]:
    """Return the ids of a text, none of which is a special token, whatever the text holds.

    Args:
        codec: of the model.
        text: the text.
        most: how many ids are of use; of a longer text some more are returned, not all.
    """
    return _encode(codec, *_cut_within(codec, text), most)


def render(
    codec: TextCodec,
    style: Format,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    most: int,
) -> Prompt:
    """Render a conversation.

    Special tokens in it are text, but for the markers of thoughts and calls in what the assistant
    is said to have said.

    Args:
        codec: of the model.
        style: of the model.
        messages: as `TextCodec.chat` takes them.
        tools: the same.
        variables: what else the template reads.
        most: how many ids are of use, as in `plain`.

    Raises:
        DlmcError: as `TextCodec.chat`.
    """
    mark = f"cut{secrets.token_hex(16)}"
    others = codec.special_tokens
    own = frozenset(name for name in others if not any(name in one for one in style.markers))

    def of(value: Any, names: frozenset[str]) -> Any:
        if isinstance(value, str):
            return cut(value, names, mark)
        if isinstance(value, Mapping):
            return {of(key, names): of(one, names) for key, one in value.items()}
        return [of(one, names) for one in value] if isinstance(value, list) else value

    safe = [of(one, own if one.get("role") == "assistant" else others) for one in messages]
    text = codec.chat(
        safe,
        tools=None if tools is None else of(list(tools), others),
        **{name: of(value, others) for name, value in variables.items()},
    )
    return Prompt(_encode(codec, text, mark, most), re.sub(mark, "", text, flags=re.IGNORECASE))


def _cut_within(codec: TextCodec, text: str) -> tuple[str, str]:
    mark = f"cut{secrets.token_hex(16)}"
    return cut(text, codec.special_tokens, mark), mark


def within(codec: TextCodec, text: str, most: int) -> list[int]:
    """Return the ids of a text, special tokens and all.

    Tokenizing takes a hundred bytes of memory for each byte of text. So a text that is long for
    ``most`` ids is counted piece by piece first, and of one with far more only some are returned.

    Args:
        codec: of the model.
        text: the text.
        most: how many ids are of use.
    """
    step, ids = most * _LONG, list[int]()
    for at in range(0, len(text), step) if len(text) > step else ():
        ids += codec.encode(text[at : at + step])
        if len(ids) > 2 * most + _LONG:  # not for where it was cut
            return ids
    return codec.encode(text)


def _encode(codec: TextCodec, text: str, mark: str, most: int) -> list[int]:
    """Tokenize what is between marks; a template may have changed their case."""
    ids: list[int] = []
    for piece in re.split(mark, text, flags=re.IGNORECASE):
        if len(ids) > most:  # many small pieces take long, and nobody wants them
            break
        ids += within(codec, piece, most) if piece else ()
    return ids
