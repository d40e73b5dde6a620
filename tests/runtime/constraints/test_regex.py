import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.constraints import regex
from dlmc_runtime.constraints.machine import build
from dlmc_runtime.errors import RequestError

PATTERNS = (
    "a|ab",
    "^ab?$",
    "(?:x|yz)*?b",
    r"\d+(\.\d{2,})?",
    r"[\w.-]+@\w+",
    r"(?P<name>a)(?<other>b)?",
    "a{3}|b{,2}".replace("{,2}", "{0,2}"),
    r"\x41[à-ü]|\u20ac\+",
    r"[]a]|[b^-]",
    "()|q",
    ".",
    "",
)
TEXTS = st.text(st.sampled_from("aabbcxyz019.-^]@ \t\nàü€A+q"), max_size=5)


@given(pattern=st.sampled_from(PATTERNS), text=TEXTS)
def test_what_matches_is_what_python_matches(machine, matches, pattern, text):
    expected = re.fullmatch(pattern.replace("(?<other>", "(?P<other>"), text, re.ASCII)
    assert matches(machine(regex.whole(pattern)), text) == bool(expected)


# Where dialects differ, so that a text of theirs may be none of ours, but never the other way.
NARROW = (r"[^a\d-]{1,3}", r"\s\S\W", r"\W", r"[^\d]", r"\D+", ".", r"[^\s]", r"[\s\S]")


@pytest.mark.parametrize("pattern", [*PATTERNS, *NARROW])
def test_every_text_matches_without_ascii_mode_too(machine, walk, pattern):
    made = machine(regex.whole(pattern))
    for seed in range(20):
        text = walk(made, random.Random(seed), 10)
        assert re.fullmatch(pattern.replace("(?<other>", "(?P<other>"), text)


@pytest.mark.parametrize(
    "pattern", ["a[^b]", '"', r"^[^\n]*\\$", "^a|b$", r"\t", r"[\s\S]{2}", r"^\d+$|é", '["x]{3}']
)
def test_a_json_string_holds_a_match(machine, walk, pattern):
    made = machine(f'"(?:{regex.inside_json(pattern)})"')
    for seed in range(40):
        text = walk(made, random.Random(seed), 20)
        assert re.search(pattern, json.loads(text)), text


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("[a", "a class without"),
        ("(a", r"a missing \)"),
        ("a)", "unexpected"),
        ("*a", "nothing before"),
        ("a**", "a quantifier of a quantifier"),
        ("(?=a)", "kind of group"),
        ("(?<!a)b", "kind of group"),
        (r"(a)\1", "not supported"),
        (r"\bword", "not supported"),
        (r"\p{L}", "not supported"),
        ("a(b$)", "an anchor"),
        ("a^", "an anchor"),
        ("a{2,1}", "ends before it begins"),
        ("a{x}", "no count"),
        ("a{20000}", "a count above"),
        ("[z-a]", "ends before it begins"),
        (r"[\d-z]", None),
        (r"\xZZ", "no hexadecimal code"),
        ("[[:alpha:]]", "in a class"),
        ("[a&&b]", "in a class"),
        ("(" * 99 + ")" * 99, "groups within one another"),
        ("a" * 20_000, "20000 characters"),
        ("\\", "too early"),
    ],
)
def test_what_is_not_understood_is_refused_where_it_stands(pattern, problem):
    if problem is None:
        regex.whole(pattern)
        return
    with pytest.raises(RequestError, match=problem):
        regex.whole(pattern)


def test_an_expression_may_match_nothing_but_says_so(machine):
    for make in (build, machine):
        with pytest.raises(RequestError, match="no text meets"):
            make(regex.whole(r"x[^\s\S]"))
