"""The messages of a conversation, as OpenAI's clients send them, and as templates read them."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.fields import Body
from dlmc_runtime.text import TextCodec

MAX_MESSAGES = 4096
MAX_CALLS = 128
_SHOWN = 40

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
Id = Annotated[str, Field(min_length=1, max_length=256)]


class TextPart(Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """Which function was called, and with what."""

    name: Name
    arguments: str = Field(description="The JSON text of an object.")


class ToolCall(Body):
    """A call that the assistant has made."""

    id: Id
    type: Literal["function"] = "function"
    function: CalledFunction


Parts = Annotated[list[TextPart], Field(min_length=1, max_length=MAX_MESSAGES)]
Calls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS)]


class Message(Body):
    """One message.

    Attributes:
        content: text, or parts that are text.
        reasoning_content: what the assistant thought, where its template shows it again.
        reasoning: another name of it.
        refusal: null, as are the next three: clients send a message back as they got it.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts | None = None
    name: Name | None = None
    tool_calls: Calls | None = None
    tool_call_id: Id | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        content = given.get("content") if isinstance(given, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                problem = f"a part of a message is {kind[:_SHOWN]!r}"
                raise FieldError("messages", problem, "this version takes text only")
        return given

    @model_validator(mode="after")
    def _fits_its_role(self) -> "Message":
        theirs: dict[str, Sequence[str]] = {
            "assistant": ("tool_calls", "reasoning_content", "reasoning"),
            "tool": ("tool_call_id",),
        }
        for role, names in theirs.items():
            for name in names:
                if self.role != role and getattr(self, name) is not None:
                    raise FieldError("messages", f"{name} is for messages of the {role}")
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise FieldError("messages", f"a message of the {self.role} has no content")
        return self


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]


def conversation(messages: Sequence[Message], codec: TextCodec) -> list[dict[str, Any]]:
    """Return messages as chat templates read them.

    Content is one text. Arguments of calls are objects, which is what templates write as they
    write everything else. Where a template does not know developers, they are the system.
    """
    knows_developers = "developer" in codec.template_source
    return [_plain(one, knows_developers=knows_developers) for one in messages]


def _plain(message: Message, *, knows_developers: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role}
    if message.role == "developer" and not knows_developers:
        found["role"] = "system"
    content = message.content
    found["content"] = (
        "\n".join(part.text for part in content) if isinstance(content, list) else content or ""
    )
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        value = getattr(message, name)
        if value is not None:
            found[name] = value
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return found


def _arguments(text: str) -> Any:
    """Return the object that arguments are, or the text where it is none."""
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text
