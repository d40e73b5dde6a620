"""What `dlmc run` asks: a text as it is, one turn of a chat, or a conversation from a file."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlmc.checkpoint.bounded_json import parse_json
from dlmc_runtime import conversation
from dlmc_runtime.errors import UsageError

if TYPE_CHECKING:
    from dlmc_runtime.text import TextCodec

MAX_PROMPT_BYTES = 16 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OWN = {"messages": "--messages", "tools": "--tools"}
_SHOWN = 40  # characters of a value that an error repeats


@dataclass(frozen=True)
class ChatOptions:
    """What the command line says about the chat; None where it says nothing.

    Attributes:
        chat: whether to render the chat template; None does it where there is one.
        system: a system message.
        messages: a JSON file of messages, or ``-`` for stdin.
        tools: a JSON file of functions.
        thinking: the template's ``enable_thinking``.
        template_args: further variables of the template, each ``NAME=VALUE``.
    """

    chat: bool | None = None
    system: str | None = None
    messages: str | None = None
    tools: Path | None = None
    thinking: bool | None = None
    template_args: Sequence[str] | None = None

    def given(self) -> list[str]:
        """Return the options that only a chat can heed."""
        there = {
            "--chat": self.chat,
            "--system": self.system is not None,
            "--messages": self.messages is not None,
            "--tools": self.tools is not None,
            "--thinking": self.thinking is not None,
            "--template-arg": self.template_args,
        }
        return [name for name, is_there in there.items() if is_there]


@dataclass(frozen=True)
class Question:
    """What to answer.

    Attributes:
        prompt: text; None where ``messages`` are all there is.
        messages: what comes before it in the conversation.
        tools: functions that the model may call.
        variables: what else the chat template is given.
        chat: whether to render the chat template; None does it where there is one.
    """

    prompt: str | None
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    chat: bool | None = None

    def render(self, codec: "TextCodec | None") -> str:
        """Return the text to encode: the prompt itself, or a conversation that ends with it.

        Raises:
            UsageError: the bundle cannot hold this conversation although one is asked for.
        """
        wanted = self.chat or self.messages or self.variables or self.tools is not None
        if codec is None or not codec.has_template:
            if wanted:
                raise UsageError("this bundle has no chat template", "ask with a PROMPT alone")
            return self.prompt or ""
        if self.chat is False:
            return self.prompt or ""
        self._check_heeded(codec.template_reads)
        turn = [] if self.prompt is None else [{"role": "user", "content": self.prompt}]
        return codec.chat([*self.messages, *turn], tools=self.tools, **self.variables)

    def _check_heeded(self, reads: frozenset[str]) -> None:
        given = [*self.variables, *([] if self.tools is None else ["tools"])]
        for name in given:
            if name not in reads:
                known = ", ".join(sorted(reads - {"messages"})) or "nothing else"
                raise UsageError(
                    f"this bundle's chat template does not look at {name}", f"it reads {known}"
                )


def read_question(prompt: str | None, options: ChatOptions) -> Question:
    """Read what the command line and the files that it names ask.

    Args:
        prompt: the text; None or ``-`` for stdin, unless there are messages.
        options: of the chat.

    Raises:
        UsageError: they contradict each other, or a file holds something else.
        RequestError: a message has a part that is no text.
    """
    if options.chat is False and options.given():
        raise UsageError(f"{options.given()[0]} needs a chat", "leave out --no-chat")
    if options.system is not None and options.messages is not None:
        raise UsageError("--system goes without --messages", "make it the first message")
    if prompt == "-" and options.messages == "-":
        raise UsageError("stdin cannot be both PROMPT and --messages", "write one to a file")
    variables = template_variables(options.template_args)
    if options.thinking is not None:
        if "enable_thinking" in variables:
            raise UsageError("enable_thinking is given twice", "give it once")
        variables["enable_thinking"] = options.thinking
    before = [] if options.system is None else [{"role": "system", "content": options.system}]
    if options.messages is not None:
        before = conversation.messages(_read_list(options.messages, "--messages"))
    tools = None if options.tools is None else _read_list(str(options.tools), "--tools")
    return Question(
        prompt=None if prompt is None and options.messages is not None else read_prompt(prompt),
        messages=tuple(before),
        tools=conversation.tools(tools),
        variables=variables,
        chat=options.chat,
    )


def read_prompt(argument: str | None) -> str:
    """Return the prompt from the command line or stdin, without stdin's last line break.

    Raises:
        UsageError: there is no prompt, it is too long, or it is not UTF-8.
    """
    if argument is not None and argument != "-":
        prompt = argument
    elif sys.stdin is None or (argument is None and sys.stdin.isatty()):  # None: it was closed
        raise UsageError("there is no prompt", "give one after BUNDLE or pipe it in")
    else:
        try:
            prompt = _stdin("the prompt").decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            problem = f"standard input is not UTF-8 at byte {error.start}"
            raise UsageError(problem, "convert it first") from None
    if not prompt:
        raise UsageError("the prompt is empty", "give one after BUNDLE or pipe it in")
    return prompt


def template_variables(given: Sequence[str] | None) -> dict[str, Any]:
    """Return variables given as ``NAME=VALUE``; a value that is no JSON is a text.

    Raises:
        UsageError: a text is of another form, or a name is taken.
    """
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        if not equals or not _NAME.fullmatch(name) or name == "self":
            raise UsageError(f"--template-arg {shown} names no variable", "write NAME=VALUE")
        if name in _OWN:
            raise UsageError(f"--template-arg cannot give {name}", f"use {_OWN[name]}")
        if name in found:
            raise UsageError(f"--template-arg {name} is given twice", "give it once")
        try:
            found[name] = json.loads(value)
        except RecursionError:
            raise UsageError(f"--template-arg {shown} is nested too deeply", "flatten it") from None
        except ValueError:
            found[name] = value
    return conversation.variables(found)


def _read_list(name: str, option: str) -> list[Any]:
    """Read a JSON list from a file, or from stdin where ``name`` is a dash and that is meant."""
    stdin = name == "-" and option == "--messages"
    where = "standard input" if stdin else name
    try:
        value = parse_json(_stdin(where) if stdin else _file(Path(name)))
    except ValueError as error:
        raise UsageError(f"{where} is {error}", f"{option} wants a JSON list") from None
    if not isinstance(value, list):
        raise UsageError(f"{where} is not a JSON list", f"{option} wants one")
    return value


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _limited(file.read(MAX_PROMPT_BYTES + 1), str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})", "check the path") from None


def _stdin(what: str) -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed", "name a file")
    return _limited(sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1), what)


def _limited(data: bytes, what: str) -> bytes:
    if len(data) > MAX_PROMPT_BYTES:
        raise UsageError(f"{what} exceeds {MAX_PROMPT_BYTES} bytes", "shorten it")
    return data
