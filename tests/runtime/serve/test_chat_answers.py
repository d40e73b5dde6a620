from dlmc_runtime.serve import chat_answers
from dlmc_runtime.serve.chat_answers import ChatCompletion, Choice, Message
from dlmc_runtime.serve.parsers.deltas import Call, Content, Reasoning

CALL = Call("f", '{"a": 1}')


def dumped(kind, **fields):
    choice = Choice(index=0, **fields)
    made = ChatCompletion(id="x", object=kind, created=1, model="m", choices=[choice])
    return chat_answers.dump(made)["choices"][0]


def test_a_whole_message_has_content_even_where_there_is_none():
    said = chat_answers.message([Reasoning("hm"), CALL])
    shown = dumped("chat.completion", message=said)["message"]
    assert shown["content"] is None
    assert shown["reasoning_content"] == "hm"
    assert shown["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert "index" not in shown["tool_calls"][0]
    empty = dumped("chat.completion", message=chat_answers.message([]))["message"]
    assert empty == {"role": "assistant", "content": ""}


def test_a_piece_says_what_is_new_and_nothing_else():
    pieces = chat_answers.pieces([Content("a"), CALL, Reasoning("r"), CALL], calls=3)
    shown = [dumped("chat.completion.chunk", delta=piece)["delta"] for piece in pieces]
    assert shown[0] == {"content": "a"}
    assert shown[2] == {"reasoning_content": "r"}
    assert [shown[i]["tool_calls"][0]["index"] for i in (1, 3)] == [3, 4]
    assert shown[1].keys() == {"tool_calls"}
    assert dumped("chat.completion.chunk", delta=Message())["delta"] == {}


def test_a_choice_always_has_an_index():
    shown = dumped("chat.completion.chunk", delta=Message(content="x"))
    assert shown["index"] == 0
    assert shown["finish_reason"] is None
