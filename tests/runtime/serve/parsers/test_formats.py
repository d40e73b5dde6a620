import pytest
from tokenizers import AddedToken, Tokenizer, models

from dlmc_runtime.serve.parsers import formats
from dlmc_runtime.serve.parsers.deltas import Call, Content, Reasoning
from dlmc_runtime.template import ChatTemplate
from dlmc_runtime.text import TextCodec


def codec_of(source, added=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken(name, special=special) for name, special in added])
    return TextCodec(tokenizer, ChatTemplate(source, "t", {}))


@pytest.mark.parametrize(
    ("source", "added", "thinking", "calls"),
    [
        ("{{ messages }}", (), None, ""),
        ("<think>\n\n</think> <tool_call>", (), "<think>", "<tool_call>"),
        ("<|tool_call> <|channel>thought <channel|>", (), "<|channel>thought", "<|tool_call>"),
        ("plain", (("<|channel>", True), ("<channel|>", True)), "<|channel>thought", ""),
        ("plain", (("<tool_call>", False),), None, "<tool_call>"),
        ("<TOOLCALL>[]</TOOLCALL>", (), None, "<TOOLCALL>"),
    ],
)
def test_a_format_is_found_by_its_markers(source, added, thinking, calls):
    found = formats.find(codec_of(source, added))
    assert (found.thinking and found.thinking.opening) == thinking
    assert found.calls.opening == calls
    assert found.specials == {name for name, special in added if special}


def test_special_tokens_are_left_out_and_others_stay():
    found = formats.find(codec_of("", (("<end>", True), ("<b>", False))))
    parser = found.parser("")
    assert [*parser.feed("a<end><b>"), *parser.end()] == [Content("a<b>")]


def test_a_prompt_may_open_the_thought():
    found = formats.find(codec_of("<think></think><tool_call>"))
    assert found.opens_thought("<|im_start|>assistant\n<think>\n")
    assert not found.opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not formats.find(codec_of("plain")).opens_thought("<think>")
    parser = found.parser("assistant\n<think>\n", {"f"})
    text = 'hm</think><tool_call>{"name": "f"}</tool_call>'
    assert [*parser.feed(text), *parser.end()] == [Reasoning("hm"), Call("f", "{}")]
    without = found.parser("assistant\n")
    assert [*without.feed("<tool_call>{}"), *without.end()] == [Content("<tool_call>{}")]
