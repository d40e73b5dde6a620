import numpy as np
import pytest

from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.base import Prediction
from dlmc_runtime.samplers.config import SamplerConfig

MASK, EOS, EXPAND = 63, 60, 58
TOKENS = {
    "mask": MASK,
    "stop": (EOS,),
    "pad": EOS,
    "suppressed": (MASK,),
    "expand": EXPAND,
    "delete": EOS,
}


@pytest.fixture
def row(manifest):
    def make(template, holes, count, **options):
        config = SamplerConfig(**{"name": "low_confidence", **options})
        request = Request(tuple(template), count, config, holes=holes)
        return Row(request, manifest("full", shift=1, tokens=TOKENS))

    return make


def say(row, tokens, confidence, second=7):
    """Let every position of the window predict ``tokens``, and ``second`` after those."""
    task = row.task(9)
    count = task.head_end - task.head_start
    tokens = np.resize(np.array(tokens, np.int64), count)
    sure = np.resize(np.array(confidence, np.float64), count)
    logits = np.log(np.stack((sure, np.full(count, 0.01)), 1)).astype(np.float32)
    ids = np.stack((tokens, np.full(count, second)), 1)
    zeros = np.zeros(count, np.float32)
    said = Outputs(ids, logits, zeros, zeros, zeros, zeros, tokens, logits[:, 0])
    row.done(task, Prediction(tokens, sure), said)
    return task


def test_the_surest_position_is_filled(row):
    one = row([1, MASK, MASK, 2], ((1, 3),), 8)
    assert say(one, [10, 11], [0.4, 0.9]).fed == 4
    assert one.canvas.tolist() == [1, MASK, 11, 2]
    say(one, [12], [0.5])
    assert one.finished
    assert one.spans() == [[12, 11]]
    assert one.answer() == [1, 12, 11, 2]


def test_expand_becomes_two_masks(row):
    one = row([1, MASK, 2], ((1, 2),), 8)
    say(one, [EXPAND], [0.9])
    assert one.canvas.tolist() == [1, MASK, MASK, 2]
    assert one.holes == [(1, 3)]
    assert one.given.tolist() == [True, False, False, True]
    say(one, [10, 11], [0.9, 0.5])
    say(one, [11], [0.9])
    assert one.spans() == [[10, 11]]


def test_delete_takes_its_position_away(row):
    one = row([1, MASK, MASK, 2, MASK, 3], ((1, 3), (4, 5)), 8)
    say(one, [10, EOS, 0, 11], [0.5, 0.9, 0.1, 0.4])
    assert one.canvas.tolist() == [1, MASK, 2, MASK, 3]
    assert one.holes == [(1, 2), (3, 4)]
    say(one, [EOS, 0, 11], [0.9, 0.1, 0.4])
    assert one.holes == [(1, 1), (2, 3)]
    say(one, [12], [0.9])
    assert one.spans() == [[], [12]]
    assert one.answer() == [1, 2, 12, 3]


def test_spans_grow_no_further_than_they_may(row):
    one = row([1, MASK, 2], ((1, 2),), 3)
    for _ in range(2):
        say(one, [EXPAND], [0.9])
    assert len(one.canvas) == 5
    assert one.regime.block_needed == 5
    say(one, [EXPAND], [0.9])  # the next best token is taken
    assert one.canvas.tolist() == [1, 7, MASK, MASK, 2]


def test_expansions_come_to_an_end(row):
    one = row([1, MASK, 2], ((1, 2),), 2)
    for _ in range(40):
        if one.finished:
            break
        # Whatever grows is deleted again.
        say(one, [EXPAND if len(one.canvas) == 3 else EOS], [0.9])
    assert one.finished
    assert one.forwards < 20


def test_an_order_ranks_the_positions(row):
    one = row([1, MASK, MASK, 2], ((1, 3),), 8, name="entropy")
    task = one.task(9)
    prediction = Prediction(np.array([10, 11]), np.array([0.9, 0.2]), entropy=np.array([2.0, 0.1]))
    zeros = np.zeros(2, np.float32)
    ids = np.array([[10], [11]])
    said = Outputs(ids, zeros[:, None], zeros, zeros, zeros, zeros, ids[:, 0], zeros)
    one.done(task, prediction, said)
    assert one.canvas.tolist() == [1, MASK, 11, 2]
