"""Templates: text with spans to fill."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlmc_runtime.errors import RequestError, UsageError
from dlmc_runtime.manifest import Manifest

_HOLE = re.compile(r"<mask:([^<>]{0,32})>")
_LONGEST = 1 << 20


@dataclass(frozen=True)
class Hole:
    """A span of ``length`` tokens to fill; the length to begin with where spans may grow."""

    length: int

    def __post_init__(self) -> None:
        """Refuse lengths that mean nothing."""
        if type(self.length) is not int or not 1 <= self.length <= _LONGEST:
            raise UsageError(f"a hole of {self.length!r} tokens", f"give 1 to {_LONGEST}")


Part = str | Sequence[int] | Hole
Template = str | Sequence[Part]


@dataclass(frozen=True)
class Encoded:
    """A template as token ids, with mask ids in its holes.

    Attributes:
        ids: token ids.
        holes: each from its first position to one past its last.
    """

    ids: tuple[int, ...]
    holes: tuple[tuple[int, int], ...]


def parse(template: str) -> list[Part]:
    """Split a text at its holes, which are written ``<mask:N>`` for N tokens.

    Raises:
        UsageError: a hole states no length, or an impossible one.
    """
    parts: list[Part] = []
    for index, piece in enumerate(_HOLE.split(template)):
        if index % 2 == 0:
            parts.append(piece)
        elif piece.isascii() and piece.isdecimal() and len(piece) <= len(str(_LONGEST)):
            parts.append(Hole(int(piece)))
        else:
            raise UsageError(
                f"<mask:{piece[:20]}> states no length", "write <mask:16> for 16 tokens"
            )
    return [part for part in parts if part != ""]


def encode(
    template: Template, manifest: Manifest, tokenize: Callable[[str], Sequence[int]]
) -> Encoded:
    """Return a template as ids.

    Every text between holes is tokenized by itself. Where spans may grow (DreamOn) the template
    stands between the model's begin and end tokens, as it was trained.

    Raises:
        UsageError: the template is neither text nor parts, or has no hole.
        RequestError: the model cannot fill spans, or not where one is.
    """
    check(manifest)
    tokens = manifest.tokens
    ids: list[int] = []
    holes: list[tuple[int, int]] = []
    grows = tokens.expand is not None
    if grows and tokens.bos is not None:
        ids.append(tokens.bos)
    for part in _parts(template):
        if isinstance(part, Hole):
            holes.append((len(ids), len(ids) + part.length))
            ids += [tokens.filler] * part.length
        else:
            ids += tokenize(part) if isinstance(part, str) else [int(one) for one in part]
    if not holes:
        raise UsageError("the template has no hole", "write <mask:16> where 16 tokens are missing")
    if manifest.shift and holes[0][0] == 0:
        raise RequestError(
            f"{manifest.family} predicts every token from the one before it",
            "begin the template with text",
        )
    if grows:
        ids += tokens.stop[:1]
    return Encoded(tuple(ids), tuple(holes))


def check(manifest: Manifest) -> None:
    """Refuse to fill spans with a model that does not see what comes after them.

    Raises:
        RequestError: it does not.
    """
    if manifest.attention.regime != "full":
        raise RequestError(
            f"{manifest.family} cannot fill spans: it sees nothing after the block it denoises",
            "use a model that sees the whole sequence, such as llada or dream",
        )


def _parts(template: Template) -> Iterable[Part]:
    if isinstance(template, str):
        return parse(template)
    if not isinstance(template, list | tuple) or not all(map(_is_part, template)):
        raise UsageError(
            "the template is neither text nor a list of parts", "give texts, token ids and holes"
        )
    return template


def _is_part(part: object) -> bool:
    if isinstance(part, str | Hole):
        return True
    return isinstance(part, list | tuple) and all(type(token) is int for token in part)
