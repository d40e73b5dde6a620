from dlmc_runtime.serve.parsers.deltas import Call, Content, Delta, Reasoning, merged


def test_neighbours_of_one_kind_are_joined_and_calls_stay_apart():
    call = Call("f", "{}")
    pieces: list[Delta] = [Content("a"), Content("b"), Reasoning("c"), call, call]
    assert merged([*pieces, Content(""), Content("d")]) == [
        Content("ab"),
        Reasoning("c"),
        call,
        call,
        Content("d"),
    ]
    assert merged([Content(""), Reasoning("")]) == []
