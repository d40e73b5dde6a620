"""Templates with named slots: ``Dear <slot name=who max=8/>, …``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlmc_runtime.events import Result
from dlmc_runtime.infill import Hole, Part
from dlmc_runtime.manifest import Manifest
from dlmc_runtime.row import Request
from dlmc_runtime.serve import fields
from dlmc_runtime.serve.errors import FieldError, blame
from dlmc_runtime.serve.models import Served
from dlmc_runtime.serve.prompts import within
from dlmc_runtime.text import TextCodec

MAX_SLOTS = 64
DEFAULT_LENGTH, MAX_LENGTH = 16, 4096
_BEGIN = 8  # tokens that a span which may grow has at first; DreamOn's authors use 4 to 64

_TAG = re.compile(r"<\s*(?:/\s*)?slot(?![\w-])[^<>]*>?", re.IGNORECASE)
_SLOT = re.compile(r"<slot(?P<attributes>\s[^<>]*?)?/>")
_ATTRIBUTE = re.compile(r"""\s+(?P<key>[\w-]+)=(?:"([^"]*)"|'([^']*)'|([^\s"'=]+))(?=\s|$)""")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
# A tag that stands for itself; one level of escaping is taken off.
_ESCAPED = re.compile(r"&(amp;)?((?:amp;)*lt;\s*(?:/\s*)?slot(?![\w-]))", re.IGNORECASE)
_SHOWN = 40

_HINT = 'write <slot name="who" max="8"/>'


@dataclass(frozen=True)
class Slot:
    """A place to fill with at most ``length`` tokens."""

    name: str
    length: int


@dataclass(frozen=True)
class Slots:
    """A template that was read.

    Attributes:
        parts: its texts and slots, in order; texts may be token ids.
    """

    parts: tuple[str | list[int] | Slot, ...]

    @property
    def slots(self) -> list[Slot]:
        """The slots, in order."""
        return [part for part in self.parts if isinstance(part, Slot)]

    @property
    def length(self) -> int:
        """Most tokens in all slots together."""
        return sum(slot.length for slot in self.slots)

    def template(self, manifest: Manifest) -> list[Part]:
        """Return what `Generator.infill_request` takes; spans that may grow begin short."""
        grows = manifest.tokens.expand is not None
        most = _BEGIN if grows else MAX_LENGTH
        return [
            Hole(min(part.length, most)) if isinstance(part, Slot) else part for part in self.parts
        ]

    def texts(self, result: Result, manifest: Manifest, codec: TextCodec) -> dict[str, str]:
        """Return what each slot was filled with.

        Spans of fixed length end at the first stop or padding token in them, with which models
        fill what they have no use for; the rest is as the model wrote it, without special tokens.
        """
        slots = self.slots
        if manifest.tokens.expand is not None:
            return {slot.name: text for slot, text in zip(slots, result.spans, strict=True)}
        ends = {*manifest.tokens.stop, manifest.tokens.pad}
        found, at = {}, 0
        for slot in slots:
            ids = result.tokens[at : at + slot.length]
            at += slot.length
            count = next((i for i, token in enumerate(ids) if token in ends), len(ids))
            found[slot.name] = codec.decode(ids[:count])
        return found

    def filled(self, texts: Mapping[str, str]) -> str:
        """Return the whole text of a template of texts, its slots filled."""
        return "".join(
            texts[part.name] if isinstance(part, Slot) else str(part) for part in self.parts
        )


@dataclass(frozen=True)
class Filling:
    """A template that became requests.

    Attributes:
        served: the model that fills it.
        read: the template.
        requests: one for each answer.
    """

    served: Served
    read: Slots
    requests: list[Request]

    def slots(self, result: Result) -> dict[str, str]:
        """Return what an answer put into each slot."""
        return self.read.texts(result, self.served.generator.manifest, self.served.text)


def fill(served: Served, template: str, body: fields.Generation) -> Filling:
    """Return the requests that fill a template.

    Raises:
        FieldError: the template is wrong, or the model cannot fill it.
    """
    if body.max_tokens is not None:
        problem = "the slots of a template say how long they may be"
        raise FieldError("max_tokens", problem, "write <slot name=who max=8/>")
    return filling(served, parse(template), body, "template")


def filling(served: Served, read: Slots, body: fields.Generation, param: str) -> Filling:
    """Return the requests that fill slots; ``param`` is the field they come from.

    Raises:
        FieldError: the model cannot fill them.
    """
    manifest = served.generator.manifest
    grows = manifest.tokens.expand is not None
    if fields.ignore_eos(body):
        raise FieldError("diffusion.ignore_eos", "a span has a length, and no end before it")
    if grows and body.reasoning_effort not in (None, "medium"):
        problem = f"{manifest.family} fills its spans one position a forward"
        raise FieldError("reasoning_effort", problem, "leave it out")
    config = fields.sampler(served, body)
    parts = [
        within(served.text, part, served.context) if isinstance(part, str) else part
        for part in read.template(manifest)
    ]
    requests = []
    for seed in fields.seeds(body):
        with blame(param):
            request = served.generator.infill_request(
                parts,
                max_new_tokens=read.length if grows else None,
                sampler=config,
                seed=seed,
            )
        requests.append(request)
    return Filling(served, read, requests)


def parse(template: str, param: str = "template") -> Slots:
    """Read a template.

    A slot is ``<slot name=who max=8/>``, its values bare or quoted, ``max`` in tokens.
    ``&lt;slot`` is the text ``<slot``, and ``&amp;lt;slot`` the text ``&lt;slot``; all else is text
    as it is.

    Args:
        template: the text.
        param: the field it is in.

    Raises:
        FieldError: a tag is not closed or says something else, two slots have one name, or there
            is none, or too many.
    """
    parts: list[str | Slot] = []
    names: set[str] = set()
    at = 0
    for tag in _TAG.finditer(template):
        slot = _slot(tag.group(), param)
        if slot.name in names:
            raise FieldError(param, f"two slots are called {slot.name}", "give each its own name")
        names.add(slot.name)
        if len(names) > MAX_SLOTS:
            raise FieldError(param, "the template has too many slots", f"{MAX_SLOTS} at most")
        parts += [_text(template[at : tag.start()]), slot]
        at = tag.end()
    if not names:
        raise FieldError(param, "the template has no slot", _HINT)
    parts.append(_text(template[at:]))
    return Slots(tuple(part for part in parts if part != ""))


def combined(parts: Sequence[str | list[int] | Slot]) -> Slots:
    """Return a template made of parts, such as a prefix, a middle and a suffix."""
    return Slots(tuple(part for part in parts if part))


def _text(text: str) -> str:
    return _ESCAPED.sub(lambda found: ("&" if found[1] else "<") + _rest(found), text)


def _rest(found: re.Match[str]) -> str:
    return found[2] if found[1] else found[2][len("lt;") :]


def _slot(tag: str, param: str) -> Slot:
    shown = tag if len(tag) <= _SHOWN else f"{tag[:_SHOWN]}…"
    read = _SLOT.fullmatch(tag)
    if read is None:
        raise FieldError(param, f"{shown} is no slot", _HINT)
    given = _attributes(read["attributes"] or "", shown, param)
    name, length = given.get("name"), given.get("max", str(DEFAULT_LENGTH))
    if name is None or not _NAME.fullmatch(name):
        hint = "a name is a letter and at most 63 letters, digits, _ and -"
        raise FieldError(param, f"{shown} has no name" if not name else f"{shown}: {name!r}", hint)
    whole = length.isascii() and length.isdecimal() and len(length) <= len(str(MAX_LENGTH))
    if not whole or not 1 <= int(length) <= MAX_LENGTH:
        raise FieldError(param, f"{shown}: max is no number from 1 to {MAX_LENGTH}", _HINT)
    return Slot(name, int(length))


def _attributes(text: str, shown: str, param: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at, end = 0, len(text.rstrip())
    while at < end:
        one = _ATTRIBUTE.match(text, at)
        if one is None:
            raise FieldError(param, f"{shown} is no slot", _HINT)
        key, at = one["key"], one.end()
        if key in found:
            raise FieldError(param, f"{shown} says {key} twice", _HINT)
        if key not in ("name", "max"):
            raise FieldError(param, f"{shown}: {key} is not supported here", _HINT)
        found[key] = next(value for value in one.groups()[1:] if value is not None)
    return found
