"""The best tokens for several positions at once that a constraint allows.

The positions of a window are filled by the most probable of all ways that lead the automaton from
its state before the window, through what is fixed, to a state from which the text can be ended in
the positions that are left (DINGO, arXiv 2505.23061). Any subset of such a way may be committed:
the rest of it shows that the constraint can still be met.

What counts at a position are the head's candidates; any other token counts as one of the others,
which share the probability that is left evenly. One token stands for all that lead from a state to
another. So a way always exists where the language allows one, whatever the candidates are.

Confidence is the probability that the position takes the token if the whole is to meet the
constraint: a forward and a backward sum over the same ways, with positions independent, as the
model predicts them. Where only one token is possible it is 1, and where everything is allowed it
is the model's own.
"""

from dataclasses import dataclass

import numpy as np

from dlmc_runtime.constraints.automaton import Automaton
from dlmc_runtime.samplers.base import Bools, Choices, Floats, Ints

_LEAST = 1e-30  # a probability of tokens of which the model says nothing


@dataclass(frozen=True)
class Span:
    """Consecutive positions and what may stand there.

    Attributes:
        fixed: int64 [n], the token of a position, -1 where none is decided.
        choices: of the ``n`` positions.
        left: positions behind them that the text may still take.
    """

    fixed: Ints
    choices: Choices
    left: int


@dataclass(frozen=True)
class Filled:
    """The best way, and how probable its parts are.

    Attributes:
        tokens: int64 [n].
        confidence: float64 [n].
        margin: float64 [n], between the two most probable candidates.
        entropy: float64 [n], in nats, all other tokens taken as one.
    """

    tokens: Ints
    confidence: Floats
    margin: Floats
    entropy: Floats


@dataclass(frozen=True)
class _Layer:
    """The ways over one position.

    Attributes:
        states: int64 [A], before it.
        source, target: int64 [M], places of states in this layer and in the next.
        token: int64 [M].
        weight: float64 [M], probabilities.
        which: int64 [M], candidates by their place; K for other tokens.
        best: int64, for each state of the next layer, the last step of the best way to it.
    """

    states: Ints
    source: Ints
    target: Ints
    token: Ints
    weight: Floats
    which: Ints
    best: Ints


def fill(automaton: Automaton, state: int, span: Span) -> Filled:
    """Return the most probable way over ``span`` that the constraint allows.

    Args:
        automaton: of the constraint.
        state: before the span.
        span: the positions.

    Raises:
        ValueError: there is none.
    """
    layers, states, scores = _ways(automaton, state, span)
    place = int(scores.argmax())
    tokens = np.empty(len(layers), np.int64)
    for position in range(len(layers) - 1, -1, -1):
        step = layers[position].best[place]
        tokens[position] = layers[position].token[step]
        place = int(layers[position].source[step])
    return _weighed(automaton, layers, states, tokens, span)


def allowed(automaton: Automaton, span: Span) -> list[Bools]:
    """Return, before each position and behind the last, the states from which a way goes on.

    Each is bool [S].
    """
    count = len(span.fixed)
    decided = np.flatnonzero(span.fixed >= 0)
    # Behind all that is fixed the distance says it: an ended text may be followed by anything.
    free = int(decided[-1]) + 1 if len(decided) else 0
    found = [automaton.distance <= span.left + count - i for i in range(free, count + 1)]
    edges = automaton.edges
    for position in range(free - 1, -1, -1):
        after, token = found[0], int(span.fixed[position])
        if token >= 0:
            before: Bools = after[automaton.column(token)]
        else:
            before = np.zeros_like(after)
            before[edges.source[after[edges.target]]] = True
        found.insert(0, before)
    return found


def _ways(automaton: Automaton, state: int, span: Span) -> tuple[list[_Layer], Ints, Floats]:
    """Return a layer for each position, the last states, and the scores of the best ways there."""
    ahead = allowed(automaton, span)
    states, scores = np.array([state]), np.zeros(1)
    layers = []
    nearest = np.empty(len(automaton.distance), np.int64)
    for position, token in enumerate(span.fixed.tolist()):
        if token >= 0:
            steps = _fixed(automaton, states, token)
        else:
            steps = _open(automaton, states, span.choices, position)
        source, target, tokens, worth, weight, which = steps
        kept = ahead[position + 1][target] & (weight > 0)
        source, target, tokens = source[kept], target[kept], tokens[kept]
        total = scores[source] + worth[kept]
        if not len(total):
            raise ValueError("the canvas has left the constraint")
        order = np.argsort(total, kind="stable")
        nearest[target[order]] = order  # the last to write is the best
        after, place = np.unique(target, return_inverse=True)
        best = nearest[after]
        layers.append(
            _Layer(states, source, place.reshape(-1), tokens, weight[kept], which[kept], best)
        )
        states, scores = after, total[best]
    return layers, states, scores


_Steps = tuple[Ints, Ints, Ints, Floats, Floats, Ints]


def _fixed(automaton: Automaton, states: Ints, token: int) -> _Steps:
    count = len(states)
    target = automaton.column(token)[states].astype(np.int64)
    one = np.ones(count)
    zero = np.zeros(count, np.int64)
    return np.arange(count), target, np.full(count, token), one - 1, one, zero


def _open(automaton: Automaton, states: Ints, choices: Choices, position: int) -> _Steps:
    """Return the steps over a position that is not decided: by candidates, and by all others."""
    ids, count, size = choices.ids[position], len(states), len(automaton.distance)
    kept = len(ids)
    target = automaton.columns(ids)[:, states].astype(np.int64)
    edges = automaton.edges
    others = edges.of(states)
    begins = np.concatenate(([0], np.cumsum(edges.first[states + 1] - edges.first[states])))
    amount = edges.count[others]
    # What candidates there are among the tokens of an edge are not among the others.
    which, source = np.nonzero(target != automaton.dead)
    key = states[source] * size + target[which, source]
    local = begins[source] + np.searchsorted(edges.key, key) - edges.first[states[source]]
    amount = amount - np.bincount(local, minlength=len(others))
    rest = max(float(choices.rest[position]), _LEAST)
    return (
        np.concatenate((np.repeat(np.arange(count), np.diff(begins)), source[::-1])),
        np.concatenate((edges.target[others], target[which, source][::-1])),
        np.concatenate((edges.token[others], ids[which][::-1])),
        np.concatenate(
            (np.full(len(others), choices.floor[position]), choices.scores[position][which][::-1])
        ),
        np.concatenate((rest * amount, np.maximum(choices.chances[position], _LEAST)[which][::-1])),
        np.concatenate((np.full(len(others), kept), which[::-1])),
    )


def _weighed(
    automaton: Automaton, layers: list[_Layer], last: Ints, tokens: Ints, span: Span
) -> Filled:
    """Return the best way with the probabilities of its tokens among all ways."""
    count, kept = len(layers), span.choices.ids.shape[1]
    behind = [np.ones(len(last))]
    for layer in reversed(layers):
        summed = np.bincount(
            layer.source, layer.weight * behind[0][layer.target], len(layer.states)
        )
        behind.insert(0, summed / summed.max())
    confidence, margin, entropy = np.ones(count), np.ones(count), np.zeros(count)
    before = np.ones(1)
    for position, layer in enumerate(layers):
        after = layers[position + 1].states if position + 1 < count else last
        if span.fixed[position] < 0:
            joint = before[layer.source] * layer.weight * behind[position + 1][layer.target]
            summed = np.bincount(layer.which, joint, kept + 1)
            total = max(float(summed.sum()), np.finfo(np.float64).tiny)
            shares = summed / total
            best = np.flatnonzero(span.choices.ids[position] == tokens[position])
            if len(best):
                confidence[position] = shares[best[0]]
            else:
                reached = automaton.column(int(tokens[position]))[layer.states]
                place = np.minimum(np.searchsorted(after, reached), len(after) - 1)
                alike = np.where(after[place] == reached, behind[position + 1][place], 0.0)
                rest = max(float(span.choices.rest[position]), _LEAST)
                confidence[position] = rest * float(before @ alike) / total
            ranked = np.sort(shares[:-1])
            margin[position] = ranked[-1] - ranked[-2] if kept > 1 else ranked[-1]
            entropy[position] = -(shares * np.log(np.maximum(shares, _LEAST))).sum()
        summed = np.bincount(layer.target, before[layer.source] * layer.weight, len(after))
        before = summed / max(float(summed.sum()), np.finfo(np.float64).tiny)
    return Filled(tokens, np.minimum(confidence, 1.0), margin, entropy)
