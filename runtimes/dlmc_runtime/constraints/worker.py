"""A child process that turns one expression into an automaton over bytes, within bounds.

An expression of forty characters may have an automaton of a billion states, and the library that
makes it cannot be interrupted: it works in a process whose memory and time are limited.

Reads the expression from standard input as UTF-8, and writes int32: the number of transitions, of
accepting states, and the first state; then the transitions' states, bytes and next states, each
together; then the accepting states. Exit status 2 says that the expression is wrong, and why; 3
that it is too large.
"""

import array
import resource
import sys
from itertools import islice

WRONG, TOO_LARGE = 2, 3
SECONDS = 5
BYTES = 1 << 30
STATES = 30_000
_SENTINEL = "X"  # lets an expression begin with an assertion, or match the empty text
_END = 256


class TooLargeError(Exception):
    """The automaton has too many states."""


def transitions(pattern: str) -> "array.array[int]":
    """Return the automaton of a Rust expression that must match a text from end to end.

    Raises:
        ValueError: the library refuses the expression.
        TooLargeError: it has more than `STATES` states.
    """
    from outlines_core import Index, Vocabulary

    vocabulary = Vocabulary(_END, {bytes((byte,)): [byte] for byte in range(_END)})
    index = Index(rf"{_SENTINEL}(?:{pattern})\z", vocabulary)
    found = index.get_transitions()
    if len(found) > STATES:
        raise TooLargeError
    first = found[index.get_initial_state()].get(ord(_SENTINEL), -1)
    edges = [
        (state, byte, after)
        for state, row in found.items()
        for byte, after in row.items()
        if byte != _END
    ]
    final = index.get_final_states()
    columns = (column for column in zip(*edges, strict=True))
    numbers = array.array("i", (len(edges), len(final), first))
    for column in islice(columns, 3):
        numbers.extend(column)
    numbers.extend(final)
    return numbers


def main() -> int:
    """Answer one expression."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        numbers = transitions(sys.stdin.buffer.read().decode())
    except ValueError as error:
        sys.stderr.write(str(error))
        return WRONG
    except (TooLargeError, MemoryError):
        return TOO_LARGE
    sys.stdout.buffer.write(numbers.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
