"""Small vocabularies and automata, made in this process."""

from functools import cache

import numpy as np
import pytest

from dlmc_runtime.constraints import regex, schema, worker
from dlmc_runtime.constraints.automaton import automaton
from dlmc_runtime.constraints.lexicon import Lexicon, Tree
from dlmc_runtime.constraints.machine import build
from dlmc_runtime.errors import RequestError

WORDS = ("a", "b", "c", "ab", "ba", "bb", "cab", "1")
STOP = len(WORDS)


def here(pattern, letters):
    try:
        numbers = worker.transitions(pattern, letters)
    except worker.EmptyError:
        raise RequestError("no text meets the constraint", "") from None
    return np.frombuffer(numbers.tobytes(), np.int32).astype(np.int64)


@cache
def _machine(pattern):
    return build(pattern, here)


@pytest.fixture(scope="session")
def machine():
    """Make an automaton of bytes from a Rust expression."""
    return _machine


def _lexicon(words=WORDS, leading=None):
    texts = {token: word.encode() for token, word in enumerate(words)}
    begun = {**texts, **(leading or {})}
    tree = Tree.of(begun) if leading else None
    size = len(words) + 2  # the stop id, and one that has no text
    return Lexicon(size, texts, leading or {}, (len(words),), Tree.of(texts), tree)


@pytest.fixture(scope="session")
def lexicon():
    """Make a lexicon: ``lexicon(words, leading)``; the id behind the words is the stop id."""
    return _lexicon


@cache
def _small(pattern):
    return automaton(_machine(regex.whole(pattern)), _lexicon())


@pytest.fixture(scope="session")
def small():
    """Make an automaton of the tokens ``a b c ab ba bb cab 1`` and a stop id."""
    return _small


def _walk(machine, rng, longest=60):
    """Return a random text that the automaton accepts."""
    far = 10**6
    left = np.where(machine.accepting, 0, far)
    while True:
        less = np.minimum(left, left[machine.table].min(1) + 1)
        if (less == left).all():
            break
        left = less
    bytes_of = [
        np.flatnonzero(machine.classes == c).tolist() for c in range(machine.table.shape[1])
    ]
    state, text, wanted = 0, bytearray(), rng.randrange(longest)
    while True:
        ways = [c for c, after in enumerate(machine.table[state]) if after != machine.states]
        if machine.accepting[state] and (not ways or len(text) >= wanted):
            return text.decode()
        if len(text) >= wanted:
            ways = [c for c in ways if left[machine.table[state, c]] < left[state]] or ways
        one = rng.choice(ways)
        text.append(rng.choice(bytes_of[one]))
        state = int(machine.table[state, one])


@pytest.fixture(scope="session")
def walk():
    """Draw a text that an automaton of bytes accepts: ``walk(machine, random.Random(seed))``."""
    return _walk


@pytest.fixture(scope="session")
def of_schema():
    """Make an automaton of bytes from a JSON schema."""
    return lambda description: _machine(schema.expression(description))


def _matches(machine, text):
    state = 0
    for byte in text.encode():
        state = int(machine.table[state, machine.classes[byte]])
    return bool(machine.accepting[state])


@pytest.fixture(scope="session")
def matches():
    """Return whether an automaton of bytes accepts a text."""
    return _matches
