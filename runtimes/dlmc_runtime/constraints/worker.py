"""A child process that turns one expression into an automaton over bytes, within bounds.

An expression of forty characters may have an automaton of a billion states, and the library that
makes it cannot be interrupted: it works in a process whose memory and time are limited.

Reads the expression from standard input as UTF-8, behind a line of the bytes that tell its letters
apart, in hexadecimal. Writes int32: the number of transitions, of accepting states, and the first
state; then the transitions' states, bytes and next states, each together; then the accepting
states. Exit status 2 says that the expression is wrong, and why; 3 that it is too large; 4 that it
matches nothing.
"""

import array
import resource
import sys
from itertools import islice

WRONG, TOO_LARGE, EMPTY = 2, 3, 4
SECONDS = 3
BYTES = 1 << 30
STATES = 30_000
_END = 256


class TooLargeError(Exception):
    """The automaton has too many states."""


class EmptyError(Exception):
    """The expression matches nothing."""


def transitions(pattern: str, letters: bytes) -> "array.array[int]":
    """Return the automaton of a Rust expression.

    Raises:
        ValueError: the library refuses the expression.
        TooLargeError: it has more than `STATES` states.
        EmptyError: it matches nothing.
    """
    from outlines_core import Index, Vocabulary

    vocabulary = Vocabulary(_END, {bytes((byte,)): [byte] for byte in letters})
    try:
        index = Index(pattern, vocabulary)
    except ValueError as error:
        if "Found no transitions" in str(error):  # from a state that does not accept
            raise EmptyError from None
        raise
    found = index.get_transitions()
    if len(found) > STATES:
        raise TooLargeError
    edges = [
        (state, byte, after)
        for state, row in found.items()
        for byte, after in row.items()
        if byte != _END
    ]
    final = index.get_final_states()
    columns = (column for column in zip(*edges, strict=True))
    numbers = array.array("i", (len(edges), len(final), index.get_initial_state()))
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
        letters, _, pattern = sys.stdin.buffer.read().decode().partition("\n")
        numbers = transitions(pattern, bytes.fromhex(letters))
    except ValueError as error:
        sys.stderr.write(str(error))
        return WRONG
    except EmptyError:
        return EMPTY
    except (TooLargeError, MemoryError):
        return TOO_LARGE
    sys.stdout.buffer.write(numbers.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
