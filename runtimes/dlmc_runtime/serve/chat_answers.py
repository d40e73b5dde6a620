"""What chat answers look like, whole and in pieces."""

import secrets
from collections.abc import Sequence
from typing import Any, Literal

from dlmc_runtime.events import Result, TokenLogprob
from dlmc_runtime.serve import answers
from dlmc_runtime.serve.answers import Answer, FinishReason, Usage
from dlmc_runtime.serve.models import Served
from dlmc_runtime.serve.parsers.deltas import Call, Content, Delta, Reasoning


class Function(Answer):
    """A called function, with the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCall(Answer):
    """A call of a tool; ``index`` counts those of an answer, in streams only."""

    index: int | None = None
    id: str
    type: Literal["function"] = "function"
    function: Function


class Message(Answer):
    """What the assistant says, or what it says next.

    Attributes:
        role: in the first piece of a stream.
        content: null where there is nothing but calls.
        reasoning_content: what it thought.
        tool_calls: what it calls.
    """

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Alternative(Answer):
    """A token and how probable it was; ``bytes`` is null for a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenChance(Alternative):
    """A token of the answer and its alternatives."""

    top_logprobs: list[Alternative]


class Chances(Answer):
    """The tokens of an answer, markers and special tokens among them."""

    content: list[TokenChance]


class Choice(Answer):
    """One answer, or what one has gained.

    Attributes:
        index: which answer.
        message: the answer.
        delta: in a stream, what it has gained.
        logprobs: where they were asked for; at the end of a stream.
        finish_reason: why it ended; null while it goes on.
        finish_detail: the same in the runtime's words.
    """

    index: int
    message: Message | None = None
    delta: Message | None = None
    logprobs: Chances | None = None
    finish_reason: FinishReason | None = None
    finish_detail: str | None = None


class ChatCompletion(Answer):
    """Answers, or an event of their stream."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    diffusion: dict[str, Any] | None = None


_OPTIONAL = ("message", "delta", "usage", "diffusion", "finish_detail", "index", "role")
_UNSAID = ("reasoning_content", "tool_calls")


def dump(completion: ChatCompletion) -> dict[str, Any]:
    """Return an answer as JSON; what a piece of a stream does not say is not in it."""
    streamed = completion.object == "chat.completion.chunk"
    return answers.dump(completion, *_OPTIONAL, *_UNSAID, *(("content",) if streamed else ()))


def message(deltas: Sequence[Delta]) -> Message:
    """Return a whole message."""
    content = "".join(one.text for one in deltas if isinstance(one, Content))
    thought = "".join(one.text for one in deltas if isinstance(one, Reasoning))
    calls = [_call(one) for one in deltas if isinstance(one, Call)]
    return Message(
        role="assistant",
        content=content or (None if calls else ""),
        reasoning_content=thought or None,
        tool_calls=calls or None,
    )


def pieces(deltas: Sequence[Delta], calls: int) -> list[Message]:
    """Return what a message gains, piece by piece.

    Args:
        deltas: what is new.
        calls: how many calls came before.
    """
    found = []
    for delta in deltas:
        if isinstance(delta, Call):
            found.append(Message(tool_calls=[_call(delta, calls)]))
            calls += 1
        elif isinstance(delta, Reasoning):
            found.append(Message(reasoning_content=delta.text))
        else:
            found.append(Message(content=delta.text))
    return found


def chances(served: Served, result: Result) -> Chances:
    """Return how probable an answer's tokens were."""
    return Chances(content=[_chance(served, one) for one in result.logprobs])


def _chance(served: Served, one: TokenLogprob) -> TokenChance:
    own = _alternative(served, one.token, one.logprob)
    top = [_alternative(served, token, value) for token, value in one.top]
    return TokenChance(**own.model_dump(), top_logprobs=top)


def _alternative(served: Served, token: int, value: float) -> Alternative:
    text = served.token(token)
    whole = "\ufffd" not in text
    return Alternative(
        token=text, logprob=answers.logprob(value), bytes=list(text.encode()) if whole else None
    )


def _call(call: Call, index: int | None = None) -> ToolCall:
    function = Function(name=call.name, arguments=call.arguments)
    return ToolCall(index=index, id=f"call_{secrets.token_hex(12)}", function=function)
