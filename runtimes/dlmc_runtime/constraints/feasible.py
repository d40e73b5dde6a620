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
class _Ways:
    """All ways over a span: its nodes are a position and a state before it, N in all.

    Attributes:
        states: int64 [N], ordered by position and number; the last ones are behind the span.
        first: int64 [n+2], where the nodes of each position begin.
        source, target: int64 [M], nodes that a step leads between, ordered by position.
        token: int64 [M].
        worth: float64 [M], scores.
        weight: float64 [M], probabilities.
        which: int64 [M], candidates by their place; K for other tokens.
        steps: int64 [n+1], where the steps of each position begin.
    """

    states: Ints
    first: Ints
    source: Ints
    target: Ints
    token: Ints
    worth: Floats
    weight: Floats
    which: Ints
    steps: Ints

    def nodes(self, position: int) -> slice:
        """Return the nodes of a position."""
        return slice(self.first[position], self.first[position + 1])

    def over(self, position: int) -> slice:
        """Return the steps over a position."""
        return slice(self.steps[position], self.steps[position + 1])


def fill(automaton: Automaton, state: int, span: Span) -> Filled:
    """Return the most probable way over ``span`` that the constraint allows.

    Args:
        automaton: of the constraint.
        state: before the span.
        span: the positions.

    Raises:
        ValueError: there is none.
    """
    ways = _ways(automaton, state, span)
    return _weighed(automaton, ways, _best(ways), span)


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


def _reached(automaton: Automaton, state: int, span: Span) -> Bools:
    """Return the states before each position and behind the last that ways lead through.

    Returns:
        bool [n+1,S].
    """
    ahead = np.stack(allowed(automaton, span))
    edges = automaton.edges
    reached = np.zeros_like(ahead)
    reached[0, state] = ahead[0, state]
    for position, token in enumerate(span.fixed.tolist()):
        here = np.flatnonzero(reached[position])
        after = automaton.column(token)[here] if token >= 0 else edges.target[edges.of(here)]
        reached[position + 1, after] = True
        reached[position + 1] &= ahead[position + 1]
    return reached


def _ways(automaton: Automaton, state: int, span: Span) -> _Ways:
    """Return all ways.

    Raises:
        ValueError: there is none.
    """
    count, size = len(span.fixed), len(automaton.distance)
    reached = _reached(automaton, state, span)
    if not reached[-1].any():
        raise ValueError("the canvas has left the constraint")
    where, states = np.nonzero(reached)
    first = np.searchsorted(where, np.arange(count + 2))
    free = span.fixed[where[: first[-2]]] < 0
    parts = []
    for find, nodes in ((_fixed, np.flatnonzero(~free)), (_open, np.flatnonzero(free))):
        if len(nodes):
            source, *more = find(automaton, span, where[nodes], states[nodes])
            parts.append((nodes[source], *more))
    source, after, token, worth, weight, which = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    position = where[source]
    kept = np.flatnonzero(reached[position + 1, after] & (weight > 0))
    kept = kept[np.argsort(position[kept], kind="stable")]
    position = position[kept]
    target = np.searchsorted(where * size + states, (position + 1) * size + after[kept])
    return _Ways(
        states=states,
        first=first,
        source=source[kept],
        target=target,
        token=token[kept],
        worth=worth[kept],
        weight=weight[kept],
        which=which[kept],
        steps=np.searchsorted(position, np.arange(count + 1)),
    )


_Steps = tuple[Ints, Ints, Ints, Floats, Floats, Ints]


def _fixed(automaton: Automaton, span: Span, where: Ints, states: Ints) -> _Steps:
    """Return the steps over positions that are decided, as `_open` does."""
    count = len(states)
    names, place = np.unique(span.fixed[where], return_inverse=True)
    target = automaton.columns(names)[place.reshape(-1), states].astype(np.int64)
    one = np.ones(count)
    zero = np.zeros(count, np.int64)
    return np.arange(count), target, span.fixed[where], one - 1, one, zero


def _open(automaton: Automaton, span: Span, where: Ints, states: Ints) -> _Steps:
    """Return the steps over positions that are not decided: by candidates, and by all others.

    Args:
        automaton: of the constraint.
        span: the positions.
        where: int64 [P], positions, ascending.
        states: int64 [P], before them.

    Returns:
        Sources as places in ``states``, target states, tokens, scores, probabilities, candidates.
    """
    choices, edges = span.choices, automaton.edges
    names, place = np.unique(choices.ids, return_inverse=True)
    table = automaton.columns(names)
    target = table[place.reshape(choices.ids.shape)[where].T, states].astype(np.int64)
    counts = edges.first[states + 1] - edges.first[states]
    begins = np.cumsum(counts) - counts
    others = edges.of(states)
    # What candidates there are among the tokens of an edge are not among the others.
    which, source = np.nonzero(target != automaton.dead)
    after, state = target[which, source], states[source]
    key = state * len(automaton.distance) + after
    local = begins[source] + np.searchsorted(edges.key, key) - edges.first[state]
    amount = edges.count[others] - np.bincount(local, minlength=len(others))
    owner = np.repeat(np.arange(len(states)), counts)
    rest = np.maximum(choices.rest, _LEAST)[where[owner]]
    which, source, after = which[::-1], source[::-1], after[::-1]  # of equals the last is best
    chosen = where[source], which
    return (
        np.concatenate((owner, source)),
        np.concatenate((edges.target[others], after)),
        np.concatenate((edges.token[others], choices.ids[chosen])),
        np.concatenate((choices.floor[where[owner]], choices.scores[chosen])),
        np.concatenate((rest * amount, np.maximum(choices.chances[chosen], _LEAST))),
        np.concatenate((np.full(len(others), choices.ids.shape[1]), which)),
    )


def _best(ways: _Ways) -> Ints:
    """Return the tokens of the most probable way, int64 [n]."""
    scores, nearest = np.zeros(len(ways.states)), np.empty(len(ways.states), np.int64)
    count = len(ways.steps) - 1
    for position in range(count):
        over = ways.over(position)
        total = scores[ways.source[over]] + ways.worth[over]
        order = np.argsort(total, kind="stable")
        target = ways.target[over][order]
        nearest[target] = order + over.start  # the last to write is the best
        scores[target] = total[order]
    tokens = np.empty(count, np.int64)
    node = int(ways.first[count]) + int(scores[ways.nodes(count)].argmax())
    for position in range(count - 1, -1, -1):
        step = nearest[node]
        tokens[position] = ways.token[step]
        node = int(ways.source[step])
    return tokens


def _sums(ways: _Ways) -> tuple[Floats, Floats]:
    """Return the probability of all ways to each node and from it, up to a factor a position.

    Returns:
        Two of float64 [N].
    """
    count, tiny = len(ways.steps) - 1, np.finfo(np.float64).tiny
    before, behind = np.ones(len(ways.states)), np.ones(len(ways.states))
    for position in range(count - 1, -1, -1):
        over, nodes = ways.over(position), ways.nodes(position)
        joint = ways.weight[over] * behind[ways.target[over]]
        summed = np.bincount(ways.source[over] - nodes.start, joint, nodes.stop - nodes.start)
        behind[nodes] = summed / summed.max()
    for position in range(count):
        over, nodes = ways.over(position), ways.nodes(position + 1)
        joint = before[ways.source[over]] * ways.weight[over]
        summed = np.bincount(ways.target[over] - nodes.start, joint, nodes.stop - nodes.start)
        before[nodes] = summed / max(float(summed.sum()), tiny)
    return before, behind


def _weighed(automaton: Automaton, ways: _Ways, tokens: Ints, span: Span) -> Filled:
    """Return the best way with the probabilities of its tokens among all ways."""
    count, kept = span.choices.ids.shape
    before, behind = _sums(ways)
    joint = before[ways.source] * ways.weight * behind[ways.target]
    row = np.repeat(np.arange(count), np.diff(ways.steps))
    summed = np.bincount(row * (kept + 1) + ways.which, joint, count * (kept + 1))
    shares = summed.reshape(count, kept + 1)
    total = np.maximum(shares.sum(1), np.finfo(np.float64).tiny)
    shares = shares / total[:, None]
    alike = span.choices.ids == tokens[:, None]
    confidence = shares[np.arange(count), alike.argmax(1)]
    for position in np.flatnonzero(~alike.any(1) & (span.fixed < 0)).tolist():
        here, after = ways.nodes(position), ways.nodes(position + 1)
        reached = automaton.column(int(tokens[position]))[ways.states[here]]
        place = np.searchsorted(ways.states[after], reached) + after.start
        place = np.minimum(place, after.stop - 1)
        chance = np.where(ways.states[place] == reached, behind[place], 0.0)
        rest = max(float(span.choices.rest[position]), _LEAST)
        confidence[position] = rest * float(before[here] @ chance) / total[position]
    ranked = np.sort(shares[:, :-1], axis=1)
    margin = ranked[:, -1] - ranked[:, -2] if kept > 1 else ranked[:, -1]
    entropy = -(shares * np.log(np.maximum(shares, _LEAST))).sum(1)
    free = span.fixed < 0
    return Filled(
        tokens,
        np.where(free, np.minimum(confidence, 1.0), 1.0),
        np.where(free, margin, 1.0),
        np.where(free, entropy, 0.0),
    )
