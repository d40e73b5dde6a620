"""Comparing one engine with recorded forwards, through Polygraphy."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from polygraphy.comparator import Comparator, RunResults
from polygraphy.logger import G_LOGGER

from dlmc.validate.comparators import Answer, BestTokens, CommittedSet, Finding, Numbers
from dlmc.validate.recording import State
from dlmc.validate.report import Layers, Place, Row
from dlmc.validate.tolerances import COMMITTED, GENERATION, LAYERS, SHARES, Limits
from dlmc_runtime.engines.base import Engine
from dlmc_runtime.manifest import Tolerance

ORDER = (
    "top_ids",
    "sampled_id",
    "top_logits",
    "sampled_logit",
    "logsumexp",
    "tempered_logsumexp",
    "entropy",
    "tempered_entropy",
    "present",
    COMMITTED,
)
"""Outputs in the order of the report."""


def compare_states(
    states: Sequence[State], engine: Engine, limits: Limits, strict: Limits, runner: str = "engine"
) -> list[Row]:
    """Replay recorded forwards on ``engine`` and compare everything that comes out.

    One forward after the other goes through Polygraphy's comparators, so that no more than one
    is in memory.

    Args:
        states: what the reference did.
        engine: the engine.
        limits: what the engine is held to, by output.
        strict: what decides whether a token or a committed position was a close call.
        runner: the engine's name.

    Raises:
        EngineError: the engine fails.
    """
    # Polygraphy logs statistics of what the first one compares, which takes ten times as long as
    # comparing it: what is committed is no output, and has none.
    functions = [CommittedSet(strict), Numbers(limits), BestTokens(strict)]
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):  # the report says it all
        results = Comparator.compare_accuracy(
            [_replayed(states, engine, runner), _recorded(states)], compare_func=functions
        )
    forwards: list[dict[str, list[Finding]]] = [{} for _ in states]
    for result in results:
        (findings,) = result.values()  # of the one pair of runners
        for forward, found in zip(forwards, findings, strict=True):
            for name, finding in found.items():
                forward.setdefault(name.split(".")[0], []).append(finding)
    names = [name for name in ORDER if any(name in forward for forward in forwards)]
    return [_row(name, [one.get(name, []) for one in forwards], limits) for name in names]


def _replayed(states: Sequence[State], engine: Engine, runner: str) -> Iterator[RunResults]:
    for state in states:
        yield _single(Answer(state, *state.replay(engine), runner))


def _recorded(states: Sequence[State]) -> Iterator[RunResults]:
    for state in states:
        yield _single(Answer(state, state.outputs, state.kept, "reference"))


def _single(answer: Answer) -> RunResults:
    run = RunResults()
    run.append((answer.runner_name, [answer]))
    return run


def _row(name: str, forwards: Sequence[Sequence[Finding]], limits: Limits) -> Row:
    """Sum up what was found about one output."""
    found = [one for forward in forwards for one in forward]
    compared, wrong = sum(one.compared for one in found), sum(one.wrong for one in found)
    limit = limits[name]
    if name not in SHARES:
        # What is out of tolerance comes first, the largest difference of its kind before others.
        most = max(found, key=lambda one: (one.wrong > 0, one.difference), default=None)
        by_forward = [max((x.difference for x in one), default=None) for one in forwards]
        difference = max((one.difference for one in found), default=0.0)
        ok = not wrong
    else:
        most = next((one for one in found if one.wrong), None)
        by_forward = [_share(one) for one in forwards]
        difference = wrong / max(compared, 1)
        ok = difference <= limit.atol
    return Row(
        name,
        compared,
        wrong,
        difference,
        limit,
        ok,
        None if most is None else most.place,
        tuple(by_forward),
    )


def _share(findings: Sequence[Finding]) -> float | None:
    compared = sum(one.compared for one in findings)
    return sum(one.wrong for one in findings) / compared if compared else None


def compare_generations(
    found: Sequence[Sequence[int]],
    wanted: Sequence[Sequence[int]],
    starts: Sequence[int],
    limits: Limits,
) -> Row:
    """Compare whole answers token by token.

    Args:
        found: the engine's tokens by prompt.
        wanted: the reference's.
        starts: position of the first token of each answer.
        limits: ``generation`` is the share that may differ.
    """
    places = [
        Place(GENERATION, prompt, 0, start + at, (), *(_name(token) for token in pair))
        for prompt, (ours, theirs, start) in enumerate(zip(found, wanted, starts, strict=True))
        for at, pair in enumerate(zip_longest(ours, theirs))
        if pair[0] != pair[1]
    ]
    compared = sum(max(map(len, pair)) for pair in zip(found, wanted, strict=True))
    share = len(places) / max(compared, 1)
    limit = limits[GENERATION]
    first = places[0] if places else None
    return Row(GENERATION, compared, len(places), share, limit, share <= limit.atol, first)


def layer_row(layers: Layers) -> Row:
    """Sum up the points inside the network; the place is that of the first one that is wrong."""
    wrong = [one for one in layers.points if not one.ok]
    most = max(layers.points, key=lambda one: one.error, default=None)
    shown = wrong[0] if wrong else most
    return Row(
        LAYERS,
        len(layers.points),
        len(wrong),
        most.error if most else 0.0,
        Tolerance(atol=layers.tolerance),
        not wrong,
        shown.where if shown else None,
    )


def _name(token: int | None) -> int | str:
    return "no token" if token is None else token
