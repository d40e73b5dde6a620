from enum import StrEnum

import pytest

from dlmc_runtime import conversation
from dlmc_runtime.errors import RequestError, UsageError

HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Role(StrEnum):
    USER = "user"


def nested(depth):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_messages_of_every_role_are_kept():
    given = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        HI,
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": {"a": [1, 2.5, True, None]}},
        {"role": "assistant", "content": ""},
    ]
    assert conversation.messages(given) == given


def test_a_template_sees_copies_of_plain_types():
    given = ({"role": Role.USER, "content": ({"type": "text", "text": "a"},)},)
    (message,) = conversation.messages(given)
    assert type(message["role"]) is str
    assert message == {"role": "user", "content": [{"type": "text", "text": "a"}]}
    assert message["content"][0] is not given[0]["content"][0]


def test_keys_without_a_value_are_left_out():
    (message,) = conversation.messages([{"role": "assistant", "content": None, "tool_calls": None}])
    assert message == {"role": "assistant"}


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_each_of_its_names(name):
    (message,) = conversation.messages([{"role": "assistant", name: "hm", "content": "a"}])
    assert (message["thinking"], message["reasoning_content"]) == ("hm", "hm")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("hi", "messages are not a list of mappings"),
        (["hi"], "messages are not a list of mappings"),
        ([["role", "user"]], "messages are not a list of mappings"),
        (HI, "messages are not a list of mappings"),
        (None, "messages are not a list of mappings"),
        ([], "there are no messages"),
        ([{"content": "hi"}], "messages[0] has no role"),
        ([HI, {"role": 3, "content": "hi"}], "messages[1] has no role"),
        ([{"role": "user", "content": 3}], "messages[0].content is neither a text nor a list"),
        ([{"role": "user", "content": {}}], "messages[0].content is neither a text nor a list"),
        ([{"role": "tool", "content": 3}], "messages[0].content is neither a text nor a list"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0] is no part with a type"),
        ([{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0] is no part"),
        (
            [HI, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "smell"}]}],
            "messages[1].content[1] has the unknown type smell",
        ),
        ([{"role": "user", "content": [{"type": "a" * 99}]}], f"type {'a' * 40}…"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0] has no text"),
        ([{"role": "user", "content": b"hi"}], "messages[0].content is of type bytes"),
        ([{"role": "user", "extra": {1: 2}}], "messages[0].extra has a key that is no text"),
        ([{"role": "user", "extra": {2, 3}}], "messages[0].extra is of type set"),
        ([{"role": "user", "extra": nested(99)}], "is nested more than 64 deep"),
    ],
)
def test_what_is_no_conversation_is_one_sentence(given, problem):
    with pytest.raises(UsageError) as caught:
        conversation.messages(given)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("image", "an image"),
        ("image_url", "an image"),
        ("audio", "audio"),
        ("input_audio", "audio"),
        ("video", "a video"),
    ],
)
def test_parts_that_are_no_text_are_refused(kind, what):
    part = {"type": kind, kind: {"url": "x"}}
    given = [HI, {"role": "user", "content": [{"type": "text", "text": "look"}, part]}]
    with pytest.raises(RequestError) as caught:
        conversation.messages(given)
    assert str(caught.value) == f"messages[1].content[1] is {what}: this version takes text only"


def test_a_conversation_has_a_limit(monkeypatch):
    monkeypatch.setattr(conversation, "MAX_VALUES", 6)
    assert conversation.messages([HI])
    with pytest.raises(UsageError, match=r"^more than 6 values .* are in messages"):
        conversation.messages([HI, HI])


def test_a_conversation_has_a_limit_of_characters(monkeypatch):
    monkeypatch.setattr(conversation, "MAX_CHARACTERS", 30)
    assert conversation.messages([HI])
    for given in (
        {"role": "user", "content": "a" * 31, "last": 1},
        {"role": "user", "content": "a" * 31},
    ):
        with pytest.raises(UsageError, match="or 30 characters"):
            conversation.messages([given])


def test_what_holds_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="nested more than 64 deep"):
        conversation.variables({"loop": loop})


def test_tools_are_kept():
    assert conversation.tools(None) is None
    assert conversation.tools([]) == []
    bare = {"function": {"name": "g"}}
    assert conversation.tools([TOOL, bare]) == [TOOL, bare]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": "f"}, "tools are not a list of functions"),
        ("f", "tools are not a list of functions"),
        (["f"], "tools[0] is no function with a name"),
        ([TOOL, {"name": "f"}], "tools[1] is no function with a name"),
        ([{"type": "function", "function": {}}], "tools[0] is no function with a name"),
        ([{"type": "web_search", "function": {"name": "f"}}], "tools[0] is no function"),
        ([{"function": {"name": "f", "parameters": "x"}}], "parameters that are no JSON schema"),
        ([print], "tools[0] is of type builtin_function_or_method"),
    ],
)
def test_what_are_no_tools_is_one_sentence(given, problem):
    with pytest.raises(UsageError) as caught:
        conversation.tools(given)
    assert problem in str(caught.value)


def test_variables_are_json():
    given = {"enable_thinking": True, "documents": [{"title": "t"}]}
    assert conversation.variables(given) == given
    with pytest.raises(UsageError, match="when is of type object"):
        conversation.variables({"when": object()})
