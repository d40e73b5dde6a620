from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.stop import Ending, StopRule

PIECES = ["a", "b", "ab", "c", "", " "]


def decode(tokens):
    return "".join(PIECES[token] for token in tokens)


def rule(*strings, ids=()):
    return StopRule(frozenset(ids), strings, decode)


def test_no_rule_never_ends():
    assert StopRule().find([0, 1, 2]) is None
    assert rule("x", ids=[9]).find([]) is None


def test_a_stop_id_ends_before_itself():
    assert rule(ids=[3, 5]).find([0, 1, 5, 3]) == Ending(2)
    assert rule(ids=[3]).find([3]) == Ending(0)


def test_a_stop_string_ends_the_text_before_itself():
    assert rule("b").find([0, 1, 3]) == Ending(2, "a")
    assert rule("ab").find([3, 2]) == Ending(2, "c")
    assert rule("a").find([0]) == Ending(1, "")


def test_a_stop_string_may_span_tokens_and_end_inside_one():
    assert rule("ca").find([0, 3, 2, 3]) == Ending(3, "a")


def test_the_string_that_is_complete_first_decides():
    assert rule("abc", "b").find([0, 1, 3]) == Ending(2, "a")
    for both in (("abc", "c"), ("c", "abc")):  # at once: the one further left
        assert rule(*both).find([0, 1, 3]) == Ending(3, "")


def test_a_string_before_a_stop_id_wins_and_one_after_it_does_not_count():
    assert rule("b", ids=[3]).find([0, 1, 3]) == Ending(2, "a")
    assert rule("b", ids=[3]).find([0, 3, 1]) == Ending(1)


def test_strings_need_a_decoder():
    assert StopRule(strings=("a",)).find([0]) is None


TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)
STRINGS = st.lists(st.text("abc ", min_size=1, max_size=4), max_size=3)


@given(TOKENS, STRINGS, st.frozensets(st.integers(0, 5), max_size=2))
def test_the_end_is_found_as_if_tokens_came_one_by_one(tokens, strings, ids):
    expected = None
    for count in range(len(tokens) + 1):
        text = decode(tokens[:count])
        hits = [text.find(string) for string in strings if string in text]
        if hits:
            expected = Ending(count, text[: min(hits)])
            break
        if count < len(tokens) and tokens[count] in ids:
            expected = Ending(count)
            break
    assert rule(*strings, ids=ids).find(tokens) == expected


@given(TOKENS, TOKENS, STRINGS, st.frozensets(st.integers(0, 5), max_size=2))
def test_later_tokens_do_not_move_an_end(tokens, more, strings, ids):
    found = rule(*strings, ids=ids).find(tokens)
    if found is not None:
        assert rule(*strings, ids=ids).find(tokens + more) == found


def test_finding_an_end_decodes_few_prefixes():
    seen = []

    def counting(tokens):
        seen.append(len(tokens))
        return decode(tokens)

    tokens = [0] * 4000 + [1]
    assert StopRule(strings=("b",), decode=counting).find(tokens) == Ending(4001, "a" * 4000)
    assert len(seen) < 20


def test_rules_are_values():
    assert StopRule() == StopRule()
    assert StopRule(frozenset([1])) != StopRule(frozenset([2]))
