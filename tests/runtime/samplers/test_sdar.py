import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import samplers
from dlmc_runtime.samplers.base import BlockState, Prediction
from dlmc_runtime.samplers.config import SamplerConfig

NAMES = ("low_confidence_static", "low_confidence_dynamic", "sequential")


def select(name, confidence, masked=None, step=0, **parameters):
    confidence = np.array(confidence, float)
    masked = np.ones(len(confidence), bool) if masked is None else np.array(masked, bool)
    sampler = samplers.build(SamplerConfig(name=name, **parameters))
    block = BlockState(masked, step, int(masked.sum()))
    prediction = Prediction(np.zeros(len(confidence), np.int64), confidence)
    return np.flatnonzero(sampler.select(prediction, block)).tolist()


def test_static_takes_its_share_of_the_block_length():
    assert select("low_confidence_static", [0.1, 0.4, 0.3, 0.2]) == [1]
    assert select("low_confidence_static", [0.1, 0.4, 0.3, 0.2], steps=2) == [1, 2]
    # 4 over 3 steps: 2, 1, 1
    assert select("low_confidence_static", [0.1, 0.4, 0.3, 0.2], steps=3) == [1, 2]
    assert select("low_confidence_static", [0.1, 0.4, 0.3, 0.2], steps=3, step=1) == [1]


@pytest.mark.parametrize("name", NAMES)
def test_known_positions_do_not_shrink_the_share_but_are_never_chosen(name):
    residue = [0, 0, 0, 1]
    assert select(name, [0.9, 0.8, 0.7, 0.1], masked=residue, steps=2) == [3]


def test_dynamic_takes_all_above_the_threshold_or_else_its_share():
    confidence = [0.95, 0.2, 0.9, 0.85]
    assert select("low_confidence_dynamic", confidence) == [0, 2]  # 0.85 is not above 0.85
    assert select("low_confidence_dynamic", confidence, threshold=0.1) == [0, 1, 2, 3]
    assert select("low_confidence_dynamic", confidence, threshold=0.99) == [0]
    assert select("low_confidence_dynamic", confidence, threshold=0.92, steps=2) == [0, 2]


def test_sequential_takes_the_leftmost_masks():
    confidence = [0.1, 0.2, 0.3, 0.4]
    assert select("sequential", confidence, steps=2) == [0, 1]
    assert select("sequential", confidence, masked=[0, 1, 0, 1], steps=2) == [1, 3]


GRADES = st.integers(0, 10).map(lambda grade: grade / 10)
BLOCKS = st.lists(st.tuples(GRADES, st.booleans()), min_size=1, max_size=8).filter(
    lambda rows: any(masked for _, masked in rows)
)


@given(BLOCKS, st.integers(1, 8), st.integers(0, 8), GRADES.filter(bool))
def test_dynamic_takes_at_least_what_static_takes(rows, steps, step, threshold):
    confidence, masked = zip(*rows, strict=True)
    static = select("low_confidence_static", confidence, masked, step, steps=steps)
    dynamic = select(
        "low_confidence_dynamic", confidence, masked, step, steps=steps, threshold=threshold
    )
    assert len(dynamic) >= len(static)
    sure = [i for i, (c, m) in enumerate(rows) if m and c > threshold]
    assert dynamic == (sure if len(sure) >= len(static) else static)


@given(BLOCKS, st.integers(1, 8), st.integers(0, 8))
def test_sequential_is_leftmost(rows, steps, step):
    confidence, masked = zip(*rows, strict=True)
    chosen = select("sequential", confidence, masked, step, steps=steps)
    assert chosen == [i for i, m in enumerate(masked) if m][: len(chosen)]
    assert len(chosen) == len(
        select("low_confidence_static", confidence, masked, step, steps=steps)
    )


@pytest.mark.parametrize("name", NAMES)
def test_confidence_is_taken_after_temperature(name):
    assert samplers.build(SamplerConfig(name=name)).tempered
    assert not samplers.build(SamplerConfig(name="low_confidence")).tempered
