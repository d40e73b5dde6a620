from dataclasses import replace

import numpy as np
import pytest

from dlmc.validate.canvases import diverge, diverged_answers, find_state
from dlmc.validate.compare import compare_states
from dlmc.validate.recording import Recording
from dlmc.validate.report import Place, Row
from dlmc.validate.tolerances import EXACT
from dlmc_runtime.manifest import Tolerance
from dlmc_runtime.text import TextCodec


class OtherTokens:
    """An engine that predicts the next id instead of the right one, from some forward on."""

    def __init__(self, engine, first):
        self.engine, self.first, self.calls = engine, first, 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        self.calls += 1
        outputs = self.engine.forward(inputs, cache, stores)
        if self.calls <= self.first:
            return outputs
        return replace(outputs, sampled_id=outputs.sampled_id + 1, top_ids=outputs.top_ids + 1)


def _diverge(recording, engine):
    rows = compare_states(recording.states, engine, EXACT, EXACT)
    return diverge(rows, recording, engine, None)


def test_engines_that_agree_do_not_diverge(recording, engine):
    assert _diverge(recording, engine) is None


@pytest.mark.parametrize("first", [0, 3])
def test_the_first_forward_that_commits_something_else_is_shown(recording, engine, first):
    found = _diverge(recording, OtherTokens(engine, first))
    assert found is not None
    state = next(state for state in recording.states[first:] if state.choice is not None)
    assert (found.prompt, found.forward, found.start) == (0, state.forward, 0)
    assert len(found.ours) == len(found.reference) == len(state.canvas)
    chosen = state.choice.select(state.choice.predict(state.outputs))
    different = np.zeros(len(state.canvas), bool)
    different[state.task.head_start : state.task.head_end] = chosen
    assert [cell.different for cell in found.ours] == different.tolist()
    assert [cell.different for cell in found.reference] == different.tolist()
    at = int(different.argmax())
    assert int(found.ours[at].text) == int(found.reference[at].text) + 1
    assert [cell.masked for cell in found.ours] == [cell.masked for cell in found.reference]
    assert any(cell.masked for cell in found.ours) or state.masked.sum() == chosen.sum()


def test_an_engine_that_answers_nan_is_shown_to_commit_nothing(recording, engine):
    class NaN(OtherTokens):
        def forward(self, inputs, cache, stores):
            outputs = self.engine.forward(inputs, cache, stores)
            return replace(outputs, logsumexp=outputs.logsumexp * np.float32(np.nan))

    found = _diverge(recording, NaN(engine, 0))
    assert found is not None
    different = [cell for cell in found.ours if cell.different]
    assert different
    assert all(cell.masked for cell in different)


def test_only_the_end_of_a_long_prompt_is_shown(recording, engine):
    long = Recording(recording.states, recording.answers, (40,))
    rows = compare_states(long.states, OtherTokens(engine, 0), EXACT, EXACT)
    found = diverge(rows, long, OtherTokens(engine, 0), None)
    assert found is not None
    assert found.start == 8


def test_whole_answers_are_shown_where_they_part():
    recording = Recording((), ((1, 2), (3, 4, 5)), (6, 7))
    found = diverged_answers([(1, 2), (3, 9)], recording, None)
    assert found is not None
    assert (found.prompt, found.forward, found.start) == (1, 0, 7)
    assert [(cell.text, cell.different) for cell in found.ours] == [("3", False), ("9", True)]
    assert [(cell.text, cell.different) for cell in found.reference] == [
        ("3", False),
        ("4", True),
        ("5", True),
    ]
    assert diverged_answers([(1, 2), (3, 4, 5)], recording, None) is None


def test_tokens_are_shown_as_their_text():
    class Text(TextCodec):
        def __init__(self):
            pass

        def token(self, token):
            return f"<{token}>"

    found = diverged_answers([(1,)], Recording((), ((2,),), (0,)), Text())
    assert found is not None
    assert (found.ours[0].text, found.reference[0].text) == ("<1>", "<2>")


def test_a_row_points_at_its_forward(recording):
    place = Place("entropy", 0, 2, 0, (), 1.0, 2.0)
    row = Row("entropy", 1, 1, 1.0, Tolerance(atol=0.0), False, place)
    assert find_state(recording, row) is recording.states[1]
    assert find_state(recording, replace(row, where=None)) is None
    assert find_state(recording, replace(row, where=replace(place, forward=0))) is None
