"""What an answer is made of: reasoning, content and calls of tools."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reasoning:
    """The next piece of what the model thought."""

    text: str


@dataclass(frozen=True)
class Content:
    """The next piece of what the model said."""

    text: str


@dataclass(frozen=True)
class Call:
    """One whole call of a tool; ``arguments`` is the JSON text of an object."""

    name: str
    arguments: str


Delta = Reasoning | Content | Call


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Return deltas with neighbours of one kind joined, and empty texts left out."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if isinstance(delta, Call):
            found.append(delta)
        elif isinstance(last, Reasoning | Content) and type(last) is type(delta):
            found[-1] = type(delta)(last.text + delta.text)
        elif delta.text:
            found.append(delta)
    return found
