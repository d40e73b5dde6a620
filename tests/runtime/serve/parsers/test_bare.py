from dlmc_runtime.serve.parsers import json_calls
from dlmc_runtime.serve.parsers.bare import Bare
from dlmc_runtime.serve.parsers.deltas import Call, Content, Reasoning


def test_an_answer_that_is_a_call_is_held_to_its_end():
    bare = Bare(json_calls.read, {"f"})
    assert bare.feed([Reasoning("r"), Content(' {"name"')]) == [Reasoning("r")]
    assert bare.feed([Content(': "f"}')]) == []
    assert bare.end() == [Call("f", "{}")]
    assert bare.end() == []


def test_an_answer_that_is_none_is_content():
    bare = Bare(json_calls.read, {"f"})
    assert bare.feed([Content(" ")]) == []
    assert bare.feed([Content("x {"), Content("y")]) == [Content(" x {"), Content("y")]
    assert bare.end() == []
    unknown = Bare(json_calls.read, {"f"})
    assert unknown.feed([Content('{"name": "g"}')]) == []
    assert unknown.end() == [Content('{"name": "g"}')]
