"""What a constraint does to one row."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.constraints.automaton import Automaton
from dlmc_runtime.constraints.feasible import Span, fill
from dlmc_runtime.samplers.base import Bools, Ints, Prediction, needed


class Guide:
    """Replaces predictions by those that a constraint allows.

    Args:
        automaton: of the constraint, shared by rows.
        start: the first position of the text.
        end: one past the last.
    """

    def __init__(self, automaton: Automaton, start: int, end: int) -> None:
        self.automaton, self.start, self.end = automaton, start, end
        self._at, self._state = start, automaton.begin

    def choose(self, prediction: Prediction, canvas: Ints, masked: Bools, start: int) -> Prediction:
        """Return the prediction with the most probable tokens that the constraint allows.

        Positions of the prompt, behind the text, and those that are decided keep what they have.

        Args:
            prediction: of the positions from ``start`` on; it holds choices.
            canvas: int64 [L].
            masked: bool [L], the positions that are not decided. Those before ``start`` are.
            start: the first position of the prediction.

        Raises:
            ValueError: the canvas has left the constraint.
        """
        begin, stop = max(start, self.start), min(start + len(prediction.tokens), self.end)
        if begin >= stop or not masked[begin:stop].any():
            return prediction
        window, inside = slice(begin, stop), slice(begin - start, stop - start)
        fixed = np.where(masked[window], -1, canvas[window])
        choices = needed(prediction.choices, "choices").part(inside)
        filled = fill(
            self.automaton,
            self._before(begin, canvas, masked),
            Span(fixed, choices, self.end - stop),
        )

        def into(values: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
            values = values.copy()
            values[inside] = np.where(fixed < 0, found, values[inside])
            return values

        tokens = prediction.tokens.copy()
        tokens[inside] = np.where(fixed < 0, filled.tokens, tokens[inside])
        margin, entropy = prediction.margin, prediction.entropy
        return replace(
            prediction,
            tokens=tokens,
            confidence=into(prediction.confidence, filled.confidence),
            margin=None if margin is None else into(margin, filled.margin),
            entropy=None if entropy is None else into(entropy, filled.entropy),
        )

    def _before(self, position: int, canvas: Ints, masked: Bools) -> int:
        """Return the automaton's state before a position, before which all is decided."""
        if position < self._at:
            self._at, self._state = self.start, self.automaton.begin
        passed = slice(self._at, position)
        if masked[passed].any():
            raise ValueError("a position before the window is not decided")
        self._state = self.automaton.advance(self._state, canvas[passed])
        self._at = position
        return self._state
