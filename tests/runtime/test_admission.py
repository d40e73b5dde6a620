from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.admission import Admission
from dlmc_runtime.errors import OverloadError


def anybody(one):
    return True


def drained(queue, fits=anybody):
    found = []
    while (one := queue.next(fits)) is not None:
        found.append(one)
    return found


def test_clients_take_turns_and_each_keeps_its_order():
    queue: Admission[int] = Admission(10)
    for client, one in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("c", 6)]:
        queue.add(client, one, 1.0)
    assert len(queue) == 6
    assert sorted(queue) == [1, 2, 3, 4, 5, 6]
    assert drained(queue) == [1, 4, 5, 2, 6, 3]
    assert len(queue) == 0


def test_a_client_that_comes_back_waits_for_those_who_were_there():
    queue: Admission[int] = Admission(10)
    queue.add("a", 1, 1.0)
    queue.add("b", 2, 1.0)
    assert queue.next(anybody) == 1
    queue.add("a", 3, 1.0)
    assert drained(queue) == [2, 3]


def test_more_than_the_limit_are_refused():
    queue: Admission[int] = Admission(2)
    queue.add("a", 1, 1.0)
    queue.add("b", 2, 1.0)
    with pytest.raises(OverloadError, match="2 requests are waiting already") as caught:
        queue.add("c", 3, 7.5)
    assert caught.value.retry_after == 7.5
    assert queue.next(anybody) == 1
    queue.add("c", 3, 1.0)
    assert [*queue] == [2, 3]


def test_nobody_overtakes_within_a_client_but_other_clients_do():
    queue: Admission[int] = Admission(9)
    for client, one in [("a", 1), ("a", 2), ("b", 3)]:
        queue.add(client, one, 1.0)
    asked = []

    def fits(one):
        asked.append(one)
        return one == 3

    assert queue.next(fits) == 3
    assert queue.next(fits) is None
    assert asked == [1, 3, 1]
    assert queue.next(anybody) == 1


def test_who_found_no_room_keeps_its_turn():
    queue: Admission[int] = Admission(9)
    for client, one in [("a", 1), ("b", 2), ("c", 3)]:
        queue.add(client, one, 1.0)
    assert queue.next(lambda one: one != 1) == 2
    queue.add("b", 4, 1.0)
    assert drained(queue) == [1, 3, 4]


def test_who_is_gone_is_asked_once_and_taken_out():
    queue: Admission[int] = Admission(9)
    for client, one in [("a", 1), ("a", 2), ("b", 3)]:
        queue.add(client, one, 1.0)
    answers = {1: deque([False]), 2: deque([True]), 3: deque([True])}
    assert queue.remove(lambda one: answers[one].popleft()) == [2, 3]
    assert drained(queue) == [1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())), st.integers(1, 5))
def test_everybody_who_is_let_in_comes_out_once(arrivals, limit):
    queue: Admission[tuple[str, int]] = Admission(limit)
    inside: list[tuple[str, int]] = []
    out: list[tuple[str, int]] = []
    for number, (client, leave) in enumerate(arrivals):
        try:
            queue.add(client, (client, number), 1.0)
        except OverloadError:
            assert len(queue) == limit
        else:
            inside.append((client, number))
        if leave and (one := queue.next(anybody)) is not None:
            out.append(one)
    out += drained(queue)
    assert sorted(out) == sorted(inside)
    for client in "abc":
        assert [one for one in out if one[0] == client] == [
            one for one in inside if one[0] == client
        ]
