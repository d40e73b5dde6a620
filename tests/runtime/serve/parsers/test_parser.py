import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlmc_runtime.serve.parsers.deltas import Call, Content, Reasoning, merged
from dlmc_runtime.serve.parsers.formats import BARE, CALLS, THINKING
from dlmc_runtime.serve.parsers.parser import Parser

GEMMA, NEMOTRON, HERMES = CALLS
CHANNEL, THINK = THINKING
STYLES = {
    "hermes": (THINK, HERMES, ("<|im_end|>", "<|endoftext|>")),
    "gemma": (
        CHANNEL,
        GEMMA,
        ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>", "<pad>"),
    ),
    "nemotron": (THINK, NEMOTRON, ("</s>",)),
    "bare": (None, BARE, ("<eos>",)),
}
NAMES = {"f", "g"}


def parse(style, *chunks, thoughtful=False, names=NAMES):
    thinking, calls, specials = STYLES[style]
    parser = Parser(thinking, calls, names=names, specials=specials, thoughtful=thoughtful)
    found = [delta for chunk in chunks for delta in parser.feed(chunk)]
    return merged([*found, *parser.end()])


HERMES_CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
GEMMA_CALL = '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
F = Call("f", '{"a": "x"}')
G = Call("g", "{}")


@pytest.mark.parametrize(
    ("style", "text", "parts"),
    [
        ("hermes", " Hello. \n", [Content(" Hello. \n")]),
        ("hermes", "<think>\nhm\n</think>\n\nHello.", [Reasoning("hm"), Content("Hello.")]),
        ("hermes", "<think>\n\n</think>\n\nHello.", [Content("Hello.")]),
        ("hermes", f"Let me see.\n{HERMES_CALL}", [Content("Let me see."), F]),
        (
            "hermes",
            f'<think>\nhm\n</think>\n\n{HERMES_CALL}\n<tool_call>{{"name": "g"}}</tool_call>\n',
            [Reasoning("hm"), F, G],
        ),
        ("hermes", f"{HERMES_CALL}<|im_end|>\nmore", [F, Content("more")]),
        ("hermes", "a<|im_end|> b", [Content("a b")]),
        ("hermes", "<think>a<|endoftext|>b", [Reasoning("ab")]),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            [Call("f", '{"a": "</tool_call>"}')],
        ),
        ("gemma", "<|channel>thought\nhm\n<channel|>Hi<turn|>", [Reasoning("hm"), Content("Hi")]),
        ("gemma", "<|channel>thought\n<channel|>Hi", [Content("Hi")]),
        (
            "gemma",
            f"<|channel>thought\nhm<channel|>{GEMMA_CALL}<|tool_call>call:g{{}}<tool_call|><turn|>",
            [Reasoning("hm"), F, G],
        ),
        ("gemma", f"One<pad>. {GEMMA_CALL}", [Content("One."), F]),
        (
            "nemotron",
            'So: <TOOLCALL>[{"name": "f", "arguments": {"a": "x"}}, {"name": "g"}]</TOOLCALL>',
            [Content("So:"), F, G],
        ),
        ("bare", '{"name": "f", "parameters": {"a": "x"}}<eos>', [F]),
        ("bare", '{"name": "h"}', [Content('{"name": "h"}')]),
        ("bare", "Hello {", [Content("Hello {")]),
    ],
)
def test_an_answer_is_told_apart(style, text, parts):
    assert parse(style, text) == parts
    assert parse(style, *text) == parts


@pytest.mark.parametrize(
    ("style", "text", "shown"),
    [
        ("hermes", '<tool_call>{"name": "f", "arg', None),
        ("hermes", ' <tool_call>\n{"name": "f", ]\n</tool_call>\n', None),
        ("hermes", '<tool_call>{"name": "unknown"}</tool_call>', None),
        ("hermes", "<tool_call><tool_call><tool_call>", None),
        ("hermes", 'a <tool_call>{"name": "f</tool_call> b', None),
        ("hermes", "</think></tool_call><tool_cal", None),
        ("gemma", "<|tool_call>call:f{raw}<tool_call|>", "call:f{raw}"),
        ("gemma", '<|tool_call>call:f{a:<|"|>', "call:f{a:"),
    ],
)
def test_what_is_no_call_is_content(style, text, shown):
    assert parse(style, text) == [Content(text if shown is None else shown)]
    assert parse(style, *text) == [Content(text if shown is None else shown)]


def test_a_call_behind_a_broken_one_is_still_one():
    text = f'<tool_call>{{"name": "f</tool_call>\n{HERMES_CALL}'
    assert parse("hermes", text) == [Content('<tool_call>{"name": "f</tool_call>'), F]


def test_a_thought_that_the_prompt_opened_goes_on():
    assert parse("hermes", "\nhm\n</think>\n\nHi", thoughtful=True) == [
        Reasoning("hm"),
        Content("Hi"),
    ]
    assert parse("hermes", "no end ", thoughtful=True) == [Reasoning("no end ")]


def test_without_tools_a_call_is_content():
    assert parse("hermes", HERMES_CALL) == [F]
    thinking, _, specials = STYLES["hermes"]
    parser = Parser(thinking, None, specials=specials)
    assert merged([*parser.feed(HERMES_CALL), *parser.end()]) == [Content(HERMES_CALL)]


def test_text_is_reported_as_soon_as_it_is_known():
    parser = Parser(THINK, HERMES, names=NAMES)
    assert parser.feed("Hello <") == [Content("Hello")]
    assert parser.feed("b> ") == [Content(" <b>")]
    assert parser.feed(HERMES_CALL) == [F]
    assert parser.end() == []


PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", HERMES_CALL, "\n", "x "),
    *("<|channel>thought\n", "<|channel>", "<channel|>", GEMMA_CALL, "<|tool_call>", '<|"|>'),
    *("<tool_call|>", "<turn|>", '{"name": "f"}', '"', "<", "<TOOLCALL>", "</TOOLCALL>", "é"),
]


@pytest.mark.parametrize("style", STYLES)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.data(), st.booleans())
@settings(max_examples=60)
def test_where_a_text_is_cut_makes_no_difference(style, text, data, thoughtful):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(style, *chunks, thoughtful=thoughtful) == parse(style, text, thoughtful=thoughtful)


def test_many_openings_without_an_end_do_not_take_long():
    text = "<tool_call>" * 20_000
    assert parse("hermes", text) == [Content(text)]
