"""Conversations: what a chat template is given, checked and made of nothing but JSON."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from dlmc_runtime.errors import RequestError, UsageError

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
MAX_CHARACTERS = 16 << 20
_SHOWN = 40  # characters of a value that an error repeats

# What a part of a message may be called that is no text, and what that is.
_MEDIA = {
    "image": "an image",
    "image_url": "an image",
    "input_image": "an image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "a video",
    "video_url": "a video",
}
# The names that reasoning goes by in messages. Templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")

_MESSAGES = 'give [{"role": "user", "content": "…"}]'
_PART = 'give {"type": "text", "text": "…"}'
_TOOLS = 'give [{"type": "function", "function": {"name": "…"}}]'


def messages(given: object) -> list[dict[str, Any]]:
    """Return the messages of a conversation as Hugging Face hands them to a template.

    A message is ``{"role": …, "content": …}`` with further keys that the template knows, such as
    ``tool_calls``, ``tool_call_id`` or ``reasoning_content``. Content is text, a list of
    ``{"type": "text", "text": …}``, or, for the role ``tool``, any JSON object. Keys that hold null
    are left out, and reasoning is given under each name that templates use for it (transformers
    5.24, ``utils/chat_template_utils.py``).

    Raises:
        UsageError: something else is given; the message says which part of it is wrong.
        RequestError: a part of a message is no text.
    """
    if not _is_list(given) or not all(isinstance(one, Mapping) for one in given):
        raise UsageError("messages are not a list of mappings", _MESSAGES)
    if not given:
        raise UsageError("there are no messages", _MESSAGES)
    return [_message(one, f"messages[{i}]") for i, one in enumerate(_plain(given, "messages"))]


def tools(given: object) -> list[dict[str, Any]] | None:
    """Return the declarations of functions that the model may call; None where there are none.

    Each is ``{"type": "function", "function": {"name": …, "description": …, "parameters": …}}``
    with a JSON schema of its parameters, as OpenAI and Hugging Face have it.

    Raises:
        UsageError: something else is given.
    """
    if given is None:
        return None
    if not _is_list(given):
        raise UsageError("tools are not a list of functions", _TOOLS)
    plain: list[dict[str, Any]] = _plain(given, "tools")
    for i, tool in enumerate(plain):
        if not _is_function(tool):
            raise UsageError(f"tools[{i}] is no function with a name", _TOOLS)
        if not isinstance(tool["function"].get("parameters"), dict | None):
            problem = f"tools[{i}] has parameters that are no JSON schema"
            raise UsageError(problem, 'give {"type": "object", "properties": {…}}')
    return plain


def variables(given: Mapping[str, object]) -> dict[str, Any]:
    """Return what else a template reads, for instance ``enable_thinking``.

    Raises:
        UsageError: a value is no JSON.
    """
    return {name: _plain(value, name) for name, value in given.items()}


def _message(plain: dict[str, Any], where: str) -> dict[str, Any]:
    message = {key: value for key, value in plain.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise UsageError(f"{where} has no role", "it must be a text such as user or assistant")
    content = message.get("content", "")
    if isinstance(content, list):
        for i, part in enumerate(content):
            _check_part(part, f"{where}.content[{i}]")
    elif not isinstance(content, str) and not (role == "tool" and isinstance(content, dict)):
        raise UsageError(f"{where}.content is neither a text nor a list of parts", _MESSAGES)
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _check_part(part: object, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise UsageError(f"{where} is no part with a type", _PART)
    if kind in _MEDIA:
        raise RequestError(f"{where} is {_MEDIA[kind]}", "this version takes text only")
    if kind != "text":
        raise UsageError(f"{where} has the unknown type {_short(kind)}", _PART)
    if not isinstance(part.get("text"), str):
        raise UsageError(f"{where} has no text", _PART)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_function(tool: object) -> bool:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        return False
    function = tool.get("function")
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _plain(value: object, where: str) -> Any:
    """Build ``value`` anew, so that a template sees nothing but JSON, and not too much of it."""
    return _Copy().of(value, where, 0)


class _Copy:
    """One value being built anew; counts what is in it."""

    def __init__(self) -> None:
        self.values = self.characters = 0

    def of(self, value: object, where: str, depth: int) -> Any:
        """Return a copy of ``value``, which lies at ``where``."""
        self._count(where, len(value) if isinstance(value, str) else 0)
        if depth > MAX_DEPTH:
            raise UsageError(f"{_short(where)} is nested more than {MAX_DEPTH} deep", "flatten it")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str.__str__(value)  # without the methods that a subclass adds
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, Mapping):
            return {
                self._key(key, where): self.of(one, f"{where}.{key}", depth + 1)
                for key, one in value.items()
            }
        if _is_list(value):
            return [self.of(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(value)]
        raise UsageError(f"{_short(where)} is of type {type(value).__name__}", "give plain JSON")

    def _count(self, where: str, characters: int) -> None:
        self.values, self.characters = self.values + 1, self.characters + characters
        if self.values > MAX_VALUES or self.characters > MAX_CHARACTERS:
            limit = f"{MAX_VALUES} values or {MAX_CHARACTERS} characters"
            raise UsageError(f"more than {limit} are in {_top(where)}", "shorten it")

    def _key(self, key: object, where: str) -> str:
        if not isinstance(key, str):
            raise UsageError(f"{_short(where)} has a key that is no text", "give plain JSON")
        self._count(where, len(key))
        return str.__str__(key)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _top(where: str) -> str:
    """Return the name that a path begins with."""
    return re.split(r"[.\[]", where, maxsplit=1)[0]
