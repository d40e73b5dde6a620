from dlmc_runtime.serve.parsers.deltas import Call, Content, Reasoning, merged


def test_neighbours_of_one_kind_are_joined_and_calls_stay_apart():
    call = Call("f", "{}")
    given = [Content("a"), Content("b"), Reasoning("c"), call, call, Content(""), Content("d")]
    assert merged(given) == [Content("ab"), Reasoning("c"), call, call, Content("d")]
    assert merged([Content(""), Reasoning("")]) == []
