"""Calls of tools as Gemma 4 and DiffusionGemma write them: ``call:name{key:<|"|>text<|"|>,n:3}``.

Strings stand between two ``<|"|>`` as they are, keys stand bare or as strings; the rest is as in
JSON. (google-deepmind/gemma ``gm/text``; the chat template writes the same.)
"""

import json
import re
from typing import Any

from dlmc_runtime.serve.parsers.deltas import Call
from dlmc_runtime.serve.parsers.json_calls import written

QUOTE = '<|"|>'
MAX_DEPTH = 64
_HEAD = re.compile(r"\s*call:([^\s{}]+)\s*(?=\{)")
_KEY = re.compile(r"[^\s:,{}\[\]<>]+")
_PLAIN = re.compile(r"true|false|null|-?(?:0|[1-9]\d{0,400})(?:\.\d{1,400})?(?:[eE][+-]?\d{1,4})?")
_SPACE = re.compile(r"\s*")


def read(text: str) -> list[Call] | None:
    """Return the call that ``text`` is, None where it is something else."""
    head = _HEAD.match(text)
    if head is None:
        return None
    try:
        arguments = _Reader(text, head.end()).all()
        return [Call(head.group(1), written(arguments))]
    except ValueError:
        return None


def closes(text: str) -> bool:
    """Return whether ``text`` ends outside of a string."""
    return text.count(QUOTE) % 2 == 0


class _Reader:
    """Reads one object, from ``at`` to the end of the text."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def all(self) -> dict[str, Any]:
        """Return the object.

        Raises:
            ValueError: it is none, is nested too deep, or something follows it.
        """
        found = self._mapping(0)
        self._skip()
        if self.at < len(self.text):
            raise ValueError("something follows the arguments")
        return found

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in self._members("{", "}", depth):
            key = self._string() if self._sees(QUOTE) else self._match(_KEY)
            self._take(":")
            found[key] = self._value(depth + 1)
        return found

    def _sequence(self, depth: int) -> list[Any]:
        return [self._value(depth + 1) for _ in self._members("[", "]", depth)]

    def _members(self, opening: str, closing: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("nested too deep")
        self._take(opening)
        if not self._sees(closing):
            yield None
            while self._sees(","):
                self._take(",")
                yield None
        self._take(closing)

    def _value(self, depth: int) -> Any:
        if self._sees(QUOTE):
            return self._string()
        if self._sees("{"):
            return self._mapping(depth)
        if self._sees("["):
            return self._sequence(depth)
        return json.loads(self._match(_PLAIN))

    def _string(self) -> str:
        self._take(QUOTE)
        end = self.text.find(QUOTE, self.at)
        if end < 0:
            raise ValueError("a string without an end")
        found, self.at = self.text[self.at : end], end + len(QUOTE)
        return found

    def _skip(self) -> None:
        space = _SPACE.match(self.text, self.at)
        self.at = self.at if space is None else space.end()

    def _sees(self, what: str) -> bool:
        self._skip()
        return self.text.startswith(what, self.at)

    def _take(self, what: str) -> None:
        if not self._sees(what):
            raise ValueError(f"no {what} where one is needed")
        self.at += len(what)

    def _match(self, pattern: re.Pattern[str]) -> str:
        self._skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise ValueError("neither a key nor a value")
        self.at = found.end()
        return found.group()
