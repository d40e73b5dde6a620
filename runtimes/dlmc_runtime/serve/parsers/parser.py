"""From committed text, as it comes, to reasoning, content and calls of tools."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from dlmc_runtime.serve.parsers.bare import Bare
from dlmc_runtime.serve.parsers.deltas import Call, Content, Delta, Reasoning, merged
from dlmc_runtime.serve.parsers.markers import Markers

Read = Callable[[str], "list[Call] | None"]
_Section = Literal["content", "reasoning", "call"]
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class Thinking:
    """What begins and what ends the model's reasoning."""

    opening: str
    closing: str


@dataclass(frozen=True)
class Calls:
    """What begins and what ends calls of tools, and how what is between is read.

    Attributes:
        opening: empty where an answer that is a call is nothing else.
        closing: the same.
        read: returns the calls that a text is, None where it is something else.
        closes: whether a text is one that ``closing`` may follow: it may be within a string.
        within: other texts that mean something between them.
        frame: what stands before calls written as JSON objects, between them, and behind them;
            None where calls are written in another way.
    """

    opening: str
    closing: str
    read: Read
    closes: Callable[[str], bool]
    within: tuple[str, ...] = ()
    frame: tuple[str, str, str] | None = None


class Parser:
    """One answer. ``feed`` it what was committed, in pieces cut anywhere, then ``end`` it.

    A piece may be a whole block, with thoughts, calls and tokens of turns all in it. The sum of
    what is returned does not depend on where the text is cut. White space beside a marker belongs
    to the marker. What begins like a call and is none, or has no end, is content.

    Args:
        thinking: the markers of reasoning; None where the model has none.
        calls: the format of calls; None where nothing is to be one.
        names: the functions that may be called; a call of another is content.
        specials: the tokenizer's special tokens, which are left out of texts.
        thoughtful: whether the answer begins within a thought, which the prompt has opened.
    """

    def __init__(
        self,
        thinking: Thinking | None = None,
        calls: Calls | None = None,
        *,
        names: Collection[str] = (),
        specials: Collection[str] = (),
        thoughtful: bool = False,
    ) -> None:
        self._thinking, self._names, self._specials = thinking, frozenset(names), specials
        bare = calls is not None and not calls.opening
        self._calls = None if bare else calls
        self._bare = Bare(calls.read, self._names) if calls is not None and bare else None
        self._section: _Section = "reasoning" if thinking and thoughtful else "content"
        self._after_marker = self._section == "reasoning"
        self._buffer = self._held = ""
        self._found: list[Delta] = []
        self._markers = self._look_for()

    def feed(self, text: str) -> list[Delta]:
        """Take the next piece; return what is now known, neighbours of one kind joined."""
        self._buffer += text
        return self._advance(last=False)

    def end(self) -> list[Delta]:
        """Return what is left: nothing else will come."""
        return self._advance(last=True)

    def _look_for(self) -> dict[_Section, Markers]:
        thinking, calls = self._thinking, self._calls
        content = {*self._specials, *([thinking.opening] if thinking else [])}
        if calls is not None:
            content.add(calls.opening)
        reasoning = {*self._specials, *([thinking.closing] if thinking else [])}
        return {"content": Markers(content), "reasoning": Markers(reasoning)}

    def _advance(self, *, last: bool) -> list[Delta]:
        while self._call(last=last) if self._section == "call" else self._text(last=last):
            pass
        if last:
            self._say(self._held)
            self._held = ""
        found, self._found = merged(self._found), []
        if self._bare is None:
            return found
        return merged([*self._bare.feed(found), *(self._bare.end() if last else ())])

    def _text(self, *, last: bool) -> bool:
        """Take text up to the next marker; return whether there was one."""
        clear, marker = self._markers[self._section].find(self._buffer, last=last)
        text, self._buffer = self._buffer[:clear], self._buffer[clear + len(marker or "") :]
        self._hear(text)
        if marker is None:
            return False
        calls, thinking = self._calls, self._thinking
        if calls is not None and marker == calls.opening and self._section == "content":
            self._section = "call"
        elif thinking is not None and marker == thinking.opening and self._section == "content":
            self._enter("reasoning")
        elif thinking is not None and marker == thinking.closing and self._section == "reasoning":
            self._enter("content")
        return True

    def _call(self, *, last: bool) -> bool:
        """Take a call, or find that it is none; return False where that is not known yet."""
        calls = self._calls
        if calls is None:
            raise ValueError("a call in an answer without calls")
        at = self._buffer.find(calls.closing)
        while at >= 0 and not calls.closes(self._buffer[:at]):
            at = self._buffer.find(calls.closing, at + 1)
        if at < 0 and not last:
            return False
        found = calls.read(self._buffer[:at]) if at >= 0 else None
        if found is None or any(call.name not in self._names for call in found):
            self._refuse(calls, last=last)
            return True
        self._buffer = self._buffer[at + len(calls.closing) :]
        self._found += found
        self._enter("content")
        return True

    def _refuse(self, calls: Calls, *, last: bool) -> None:
        """Take the marker for text; what follows it is looked through again."""
        self._section = "content"
        if calls.opening not in self._specials:
            self._hear(calls.opening)
        if last and calls.closing not in self._buffer:  # nor can any later one be a call
            self._calls = None
            self._markers = self._look_for()

    def _enter(self, section: _Section) -> None:
        self._section, self._held, self._after_marker = section, "", True

    def _hear(self, text: str) -> None:
        """Take text of the section; white space waits until it is known what follows."""
        if self._after_marker:
            text = text.lstrip(_SPACE)
        if not text:
            return
        self._after_marker = False
        text = self._held + text
        kept = text.rstrip(_SPACE)
        self._held = text[len(kept) :]
        self._say(kept)

    def _say(self, text: str) -> None:
        self._found.append(Reasoning(text) if self._section == "reasoning" else Content(text))
