"""Which markers a bundle's model uses: a table, looked up in its chat template and tokenizer."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from dlmc_runtime.serve.parsers import gemma_calls, json_calls
from dlmc_runtime.serve.parsers.parser import Calls, Parser, Thinking
from dlmc_runtime.text import TextCodec

THINKING: tuple[Thinking, ...] = (
    # DiffusionGemma. An empty thought is what its template writes where thinking is off.
    Thinking("<|channel>thought", "<channel|>"),
    # Qwen3 and what descends from it: SDAR, A2D, Fast-dLLM; LLaDA2; Nemotron.
    Thinking("<think>", "</think>"),
)
"""Markers of reasoning; the first row whose closing marker a bundle has is its own."""

CALLS: tuple[Calls, ...] = (
    Calls(
        "<|tool_call>", "<tool_call|>", gemma_calls.read, gemma_calls.closes, (gemma_calls.QUOTE,)
    ),
    # Nemotron: a list of calls between one pair of markers.
    Calls(
        "<TOOLCALL>",
        "</TOOLCALL>",
        json_calls.read,
        json_calls.closes,
        frame=("<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    ),
    # Hermes: Qwen and what descends from it, and LLaDA2, which has it from Ling.
    Calls(
        "<tool_call>",
        "</tool_call>",
        json_calls.read,
        json_calls.closes,
        frame=("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>"),
    ),
)
"""Formats of calls; the first row whose opening marker a bundle has is its own."""

BARE = Calls("", "", json_calls.read, json_calls.closes, frame=("[", ", ", "]"))
"""The format of models without markers, such as Llama 3: an answer that is JSON and a call."""


@dataclass(frozen=True)
class Format:
    """How a bundle's model writes.

    Attributes:
        thinking: the markers of its reasoning; None where it has none.
        calls: how it calls tools.
        specials: its special tokens.
    """

    thinking: Thinking | None
    calls: Calls
    specials: frozenset[str] = frozenset()

    @property
    def markers(self) -> tuple[str, ...]:
        """Everything that means something in the text of an answer."""
        thinking = (self.thinking.opening, self.thinking.closing) if self.thinking else ()
        calls = (self.calls.opening, self.calls.closing) if self.calls.opening else ()
        return (*thinking, *calls, *self.calls.within)

    def opens_thought(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends within a thought, so that the answer begins there.

        Templates end so where thinking is on, or, as Qwen3's does, close an empty thought where
        it is off.
        """
        if self.thinking is None:
            return False
        return prompt.rstrip().endswith(self.thinking.opening)

    def parser(self, prompt: str, names: Collection[str] = ()) -> Parser:
        """Return a parser of the answer to a prompt.

        Args:
            prompt: as the chat template rendered it.
            names: the functions that the answer may call; no call is looked for without any.
        """
        return Parser(
            self.thinking,
            self.calls if names else None,
            names=names,
            specials=self.specials,
            thoughtful=self.opens_thought(prompt),
        )


@lru_cache(maxsize=64)
def find(codec: TextCodec) -> Format:
    """Return the format of a bundle's model, by its chat template and its tokenizer."""
    source, added = codec.template_source, codec.added_tokens

    def has(marker: str) -> bool:
        return marker in source or marker in added

    thinking = next((one for one in THINKING if has(one.closing)), None)
    calls = next((one for one in CALLS if has(one.opening)), BARE)
    return Format(thinking, calls, codec.special_tokens)
