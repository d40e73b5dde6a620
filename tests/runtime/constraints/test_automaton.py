import re
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.constraints import regex
from dlmc_runtime.constraints.automaton import automaton
from dlmc_runtime.constraints.machine import FAR
from dlmc_runtime.errors import RequestError

WORDS = ("a", "b", "c", "ab", "ba", "bb", "cab", "1")
STOP, NOTHING = 8, 9
PATTERNS = ("(ab)*", "a[bc]*1", "(cab|b){1,3}", "[^a]*a?", "ab1?|c{4}", "(a|b)*bb")


@given(pattern=st.sampled_from(PATTERNS), tokens=st.lists(st.integers(0, 7), max_size=7))
def test_texts_are_accepted_that_match_from_end_to_end(small, pattern, tokens):
    text = "".join(WORDS[token] for token in tokens)
    matches = re.fullmatch(pattern, text) is not None
    made = small(pattern)
    assert made.accepts(np.array(tokens, np.int64)) == matches
    ended = np.array([*tokens, STOP, 3, NOTHING, STOP], np.int64)
    assert made.accepts(ended) == matches


@pytest.mark.parametrize(
    ("pattern", "tokens", "whole"),
    [
        ("(ab){2}", [3, 3], True),
        ("(ab){2}", [3], False),
        ("(ab)*", [3, 3], False),
        ("a|b", [0, STOP, 3], True),
        ("a|b", [2], False),
    ],
)
def test_a_text_is_complete_where_nothing_may_follow(small, pattern, tokens, whole):
    assert small(pattern).completes(np.array(tokens, np.int64)) is whole


def test_an_id_without_text_is_not_allowed(small):
    assert not small("[^x]*").accepts(np.array([NOTHING]))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_distance_is_the_least_number_of_tokens(small, pattern):
    made = small(pattern)
    for state in np.flatnonzero(made.distance[: made.end] < FAR).tolist():
        front, seen = deque([(state, 0)]), {state}
        while made.distance[front[0][0]] != 0 or front[0][0] == made.end:
            here, steps = front.popleft()
            for token in range(8):
                after = int(made.column(token)[here])
                if after not in seen and after != made.dead:
                    seen.add(after)
                    front.append((after, steps + 1))
        assert made.distance[state] == front[0][1]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_edges_are_the_tokens_that_lead_from_state_to_state(small, pattern):
    made = small(pattern)
    expected: dict[tuple[int, int], list[int]] = {}
    for token in range(10):
        for state, after in enumerate(made.column(token)):
            if after != made.dead:
                expected.setdefault((state, int(after)), []).append(token)
    edges = made.edges
    pairs = list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    assert pairs == sorted(expected)
    for pair, token, count in zip(pairs, edges.token.tolist(), edges.count.tolist(), strict=True):
        assert token in expected[pair]
        assert count == len(expected[pair])
    for state in range(made.end):
        mine = edges.of(np.array([state]))
        assert (edges.source[mine] == state).all()


def test_a_token_may_add_another_text_at_the_beginning(machine, lexicon):
    words = (" a", "a", " b", "b")
    leading = {0: b"a", 2: b"b"}
    made = automaton(machine(regex.whole("a( b)+")), lexicon(words, leading))
    assert made.accepts(np.array([0, 2]))
    assert made.accepts(np.array([1, 2, 2]))
    assert not made.accepts(np.array([0, 3]))
    assert made.shortest == 2
    assert not automaton(machine(regex.whole(" ?a")), lexicon(words, leading)).accepts(
        np.array([2])
    )


def test_a_text_of_no_tokens_may_be_accepted_at_the_beginning(machine, lexicon):
    made = automaton(machine(regex.whole("(a b)?")), lexicon((" a", "a", " b"), {0: b"a", 2: b"b"}))
    assert made.shortest == 0
    assert made.accepts(np.array([3]))


def test_what_no_tokens_spell_is_refused(machine, lexicon):
    with pytest.raises(RequestError, match="no text of the model's tokens"):
        automaton(machine(regex.whole("z+")), lexicon())


def test_states_that_tokens_cannot_finish_are_never_entered(machine, lexicon):
    made = automaton(machine(regex.whole("az|b")), lexicon())
    assert not made.accepts(np.array([0]))
    assert made.column(0)[0] == made.dead
    assert (made.distance[made.edges.target] < FAR).all()


def test_too_much_to_find_out_is_refused(machine, lexicon, monkeypatch):
    monkeypatch.setattr("dlmc_runtime.constraints.automaton._MOST_STEPS", 10)
    with pytest.raises(RequestError, match="too large"):
        automaton(machine(regex.whole("[abc]{9}")), lexicon())


def test_what_is_remembered_is_bounded(machine, lexicon, monkeypatch):
    made = automaton(machine(regex.whole("[abc]*")), lexicon())
    monkeypatch.setattr("dlmc_runtime.constraints.automaton._KEPT_BYTES", 3 * 4 * 4)
    for token in range(8):
        made.column(token)
    assert len(made._columns) <= 3
    assert made.accepts(np.array([0, 1, 6]))
