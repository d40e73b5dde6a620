import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.constraints import machine, worker
from dlmc_runtime.constraints.machine import FAR, distances
from dlmc_runtime.errors import DlmcError, RequestError


def test_a_machine_is_made_in_a_process_of_its_own(matches):
    made = machine.build("a|ab|b{2,3}")
    found = {
        text for text in ("", "a", "ab", "abb", "b", "bb", "bbb", "bbbb") if matches(made, text)
    }
    assert found == {"a", "ab", "bb", "bbb"}


@pytest.mark.parametrize(
    ("pattern", "states"), [("a|b|c|ab|ac", 3), ("(?:a|b)*abb", 4), ("", 1), ("(?:ab|cb)*", 2)]
)
def test_a_machine_is_as_small_as_can_be(machine, pattern, states):
    assert machine(pattern).states == states


def test_every_state_leads_to_a_text(machine):
    made = machine(r"[a-z]{2,5}x|[\x{80}-\x{FFF}]b")
    reached = made.accepting.copy()
    for _ in range(made.states):
        reached |= reached[made.table].any(1)
    assert reached[:-1].all()
    assert (made.table[-1] == made.states).all()


def test_a_long_chain_is_no_problem(machine, matches):
    made = machine('"(?:[a-z]|[\\x{80}-\\x{10FFFF}]){0,300}"')
    assert matches(made, '"' + "é" * 300 + '"')
    assert not matches(made, '"' + "é" * 301 + '"')


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [("(", "is refused"), ("a[a&&b]", "no text meets"), ("x" * 500_000, "too large")],
)
def test_what_cannot_be_made_is_refused(pattern, problem):
    with pytest.raises(RequestError, match=problem):
        machine.build(pattern)


def answering(monkeypatch, source):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: source)


class Answer:
    def __init__(self, returncode, stderr=b"", stdout=b""):
        self.returncode, self.stderr, self.stdout = returncode, stderr, stdout


@pytest.mark.parametrize("status", [worker.TOO_LARGE, -6, -9, 1])
def test_a_child_that_dies_means_too_large(monkeypatch, status):
    answering(monkeypatch, Answer(status))
    with pytest.raises(RequestError, match="too large"):
        machine.build("a")


def test_a_child_without_the_library_says_what_to_install(monkeypatch):
    answering(monkeypatch, Answer(1, b"ModuleNotFoundError: No module named 'outlines_core'"))
    with pytest.raises(DlmcError, match="outlines-core is not installed"):
        machine.build("a")


def test_groups_that_collide_are_drawn_anew(monkeypatch, matches):
    class Poor:
        """Draws the same number for everything the first time."""

        def __init__(self, seed):
            self.good = np.random.Generator(np.random.PCG64(seed)) if seed else None

        def integers(self, low, high, size, dtype):
            if self.good is None:
                return np.zeros(size, dtype)
            return self.good.integers(low, high, size, dtype=dtype)

    monkeypatch.setattr(np.random, "default_rng", Poor)
    made = machine.build("ab|cd")
    assert [matches(made, text) for text in ("ab", "cd", "ad", "cb")] == [True, True, False, False]


@pytest.mark.slow
def test_an_expression_that_explodes_is_refused():
    with pytest.raises(RequestError, match="too large"):
        machine.build("(?:a|b)*a(?:a|b){40}")


@given(st.data(), st.integers(1, 12))
def test_distances_are_those_of_a_search_state_by_state(data, states):
    state = st.integers(0, states - 1)
    edges = data.draw(st.lists(st.tuples(state, state), max_size=40))
    goals = data.draw(st.sets(state))
    expected, at = dict.fromkeys(goals, 0), sorted(goals)
    for target in at:  # which grows meanwhile
        for source in (one for one, other in edges if other == target and one not in expected):
            expected[source] = expected[target] + 1
            at.append(source)
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    found = distances(source, target, np.array(sorted(goals), np.int64), states)
    assert {one: int(far) for one, far in enumerate(found) if far < FAR} == expected
