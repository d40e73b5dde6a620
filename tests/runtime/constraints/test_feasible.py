import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlmc_runtime.constraints.feasible import Span, allowed, fill
from dlmc_runtime.constraints.machine import FAR
from dlmc_runtime.samplers.base import Choices

PATTERNS = ("(ab)*", "a[bc]*1", "(cab|b){1,3}", "[^a]*a?", "ab1?|c{4}", "(a|b)*bb")
TOKENS = 10  # eight words, the stop id, and one without a text
STOP = 8
MANY = settings(max_examples=60)


def random_choices(rng, count, kept):
    ids = np.stack([rng.permutation(TOKENS)[:kept] for _ in range(count)]).reshape(count, kept)
    chances = -np.sort(-rng.dirichlet(np.full(kept + 1, 0.4), count) - 1e-6)  # the best first
    rest = chances[:, -1] / (TOKENS - kept)
    return Choices(ids, np.log(chances[:, :-1]), chances[:, :-1], np.log(rest), rest)


def ways(automaton, state, span):
    """Yield all that may stand in a span, the long way: tokens, score and probability."""
    choices = span.choices
    for tokens in product(range(TOKENS), repeat=len(span.fixed)):
        if any(fixed not in (-1, token) for fixed, token in zip(span.fixed, tokens, strict=True)):
            continue
        after = automaton.advance(state, np.array(tokens, np.int64))
        if automaton.distance[after] > span.left:
            continue
        score, chance = 0.0, 1.0
        for position, token in enumerate(tokens):
            if span.fixed[position] >= 0:
                continue
            kept = np.flatnonzero(choices.ids[position] == token)
            score += choices.scores[position][kept[0]] if len(kept) else choices.floor[position]
            chance *= choices.chances[position][kept[0]] if len(kept) else choices.rest[position]
        yield tokens, score, chance


@st.composite
def spans(draw):
    count, kept = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    fixed = draw(st.lists(st.sampled_from([-1, -1, *range(9)]), min_size=count, max_size=count))
    choices = random_choices(rng, count, kept)
    return Span(np.array(fixed), choices, draw(st.integers(0, 3)))


@MANY
@given(pattern=st.sampled_from(PATTERNS), span=spans())
def test_the_way_is_the_best_of_all_ways(small, pattern, span):
    automaton = small(pattern)
    found = list(ways(automaton, automaton.begin, span))
    if not found:
        assert not allowed(automaton, span)[0][automaton.begin]
        with pytest.raises(ValueError, match="left the constraint"):
            fill(automaton, automaton.begin, span)
        return
    filled = fill(automaton, automaton.begin, span)
    best = max(score for _, score, _ in found)
    chosen = [score for tokens, score, _ in found if tokens == tuple(filled.tokens)]
    assert chosen == [pytest.approx(best)]


@MANY
@given(pattern=st.sampled_from(PATTERNS), span=spans())
def test_confidence_is_the_probability_among_all_ways(small, pattern, span):
    automaton = small(pattern)
    found = list(ways(automaton, automaton.begin, span))
    total = sum(chance for _, _, chance in found)
    if total < 1e-12:
        return
    filled = fill(automaton, automaton.begin, span)
    for position, token in enumerate(filled.tokens):
        share = sum(chance for tokens, _, chance in found if tokens[position] == token) / total
        assert filled.confidence[position] == pytest.approx(share, abs=1e-9)


@MANY
@given(pattern=st.sampled_from(PATTERNS), span=spans())
def test_a_state_is_allowed_where_a_way_goes_on_from_it(small, pattern, span):
    automaton = small(pattern)
    for state in range(automaton.dead):
        if automaton.distance[state] < FAR:
            possible = any(True for _ in ways(automaton, state, span))
            assert allowed(automaton, span)[0][state] == possible


@given(
    pattern=st.sampled_from(PATTERNS),
    seed=st.integers(0, 2**32),
    spare=st.integers(0, 6),
    block=st.integers(1, 5),
)
def test_whatever_is_committed_the_text_can_be_finished(small, pattern, seed, spare, block):
    automaton, rng = small(pattern), np.random.default_rng(seed)
    length = automaton.shortest + spare
    canvas = np.full(length, -1)
    for start in range(0, length, block):
        window = slice(start, min(start + block, length))
        state = automaton.advance(automaton.begin, canvas[:start])
        while (canvas[window] < 0).any():
            fixed = canvas[window].copy()
            choices = random_choices(rng, len(fixed), 3)
            filled = fill(automaton, state, Span(fixed, choices, length - window.stop))
            chosen = rng.random(len(fixed)) < 0.4
            reopened = rng.random(len(fixed)) < 0.1
            fixed = np.where(chosen & (fixed < 0), filled.tokens, fixed)
            canvas[window] = np.where(reopened & ~chosen, -1, fixed)
    assert automaton.accepts(canvas)


def test_where_only_one_token_is_possible_it_is_certain(small):
    automaton = small("ca1")
    rng = np.random.default_rng(0)
    filled = fill(automaton, 0, Span(np.array([-1, -1, -1]), random_choices(rng, 3, 2), 0))
    assert filled.tokens.tolist() == [2, 0, 7]
    assert filled.confidence.tolist() == pytest.approx([1, 1, 1])
    assert filled.entropy.tolist() == pytest.approx([0, 0, 0], abs=1e-9)


def test_where_everything_is_allowed_confidence_is_the_models_own(small):
    automaton, rng = small("[^x]*"), np.random.default_rng(1)
    chances = -np.sort(-rng.dirichlet(np.ones(8), 3))
    ids = np.array([rng.permutation(8) for _ in range(3)])
    choices = Choices(ids, np.log(chances), chances, np.full(3, -60.0), np.zeros(3))
    filled = fill(automaton, 0, Span(np.full(3, -1), choices, 5))
    assert filled.tokens.tolist() == ids[:, 0].tolist()
    assert filled.confidence.tolist() == pytest.approx(chances[:, 0].tolist())
    assert filled.margin.tolist() == pytest.approx((chances[:, 0] - chances[:, 1]).tolist())
    entropies = -(chances * np.log(chances)).sum(1)
    assert filled.entropy.tolist() == pytest.approx(entropies.tolist())


def test_a_long_span_of_impossible_candidates_has_a_way(small):
    automaton, count = small("(a|b)*bb"), 200
    rng = random.Random(0)
    ids = np.array([[2, 7]] * count)  # neither is ever allowed
    chances = np.array([[1 - 1e-9, 1e-9]] * count)
    choices = Choices(ids, np.log(chances), chances, np.full(count, -60.0), np.zeros(count))
    fixed = np.full(count, -1)
    fixed[rng.randrange(count)] = 3
    filled = fill(automaton, 0, Span(fixed, choices, 0))
    assert automaton.accepts(filled.tokens)
    assert np.isfinite(filled.confidence).all()
