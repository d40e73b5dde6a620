import pytest
import speaking
from pydantic import ValidationError

from dlmc_runtime.serve import messages
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.messages import Message


def plain(*given, manner="hermes"):
    read = [Message.model_validate(one) for one in given]
    return messages.conversation(read, speaking.codec(manner))


def test_parts_are_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain({"role": "user", "content": parts}) == [{"role": "user", "content": "a\nb"}]


def test_arguments_reach_a_template_as_objects():
    def called(arguments):
        call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
        (message,) = plain({"role": "assistant", "content": None, "tool_calls": [call]})
        assert message["content"] == ""
        return message["tool_calls"][0]["function"]["arguments"]

    assert called('{"a": [1]}') == {"a": [1]}
    assert called("") == {}
    assert called("[1]") == "[1]"
    assert called("no json") == "no json"
    assert called("[" * 100_000) == "[" * 100_000


def test_developers_are_the_system_where_a_template_does_not_know_them():
    turn = {"role": "developer", "content": "Be brief."}
    assert plain(turn)[0]["role"] == "system"
    assert plain(turn, manner="gemma")[0]["role"] == "developer"


def test_a_message_can_be_sent_back_as_it_came():
    said = {
        "role": "assistant",
        "content": "Hi",
        "reasoning_content": "hm",
        **dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls")),
    }
    assert plain(said) == [{"role": "assistant", "content": "Hi", "reasoning_content": "hm"}]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "x", "tool_calls": []},
        {"role": "user", "content": "x", "reasoning": "hm"},
        {"role": "assistant", "content": "x", "tool_call_id": "1"},
        {"role": "user", "content": [{"type": "input_audio"}]},
    ],
)
def test_a_message_has_what_its_role_has(message):
    with pytest.raises(FieldError) as caught:
        Message.model_validate(message)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": 3},
        {"role": "user", "content": "x", "name": "a b"},
        {"role": "assistant", "content": "x", "refusal": "no"},
        "x",
    ],
)
def test_what_is_no_message_is_refused(message):
    with pytest.raises(ValidationError):
        Message.model_validate(message)
