from itertools import groupby

import blocks
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.samplers.hierarchy import runs

GRADES = st.integers(0, 10).map(lambda grade: grade / 10)


def select(confidence, masked, **options):
    sampler = blocks.build("hierarchy", **options)
    return blocks.select(sampler, blocks.prediction(confidence), blocks.state(masked))


def test_by_hand():
    masked = [1, 1, 0, 1, 1, 0, 1]
    assert select([0.5, 0.6, 1.0, 0.45, 0.3, 1.0, 0.2], masked) == [1, 3]
    assert select([0.5, 0.6, 1.0, 0.45, 0.3, 1.0, 0.2], masked, low_threshold=0.1) == [1, 3, 6]
    assert select([0.95, 0.92, 1.0, 0.9, 0.3, 1.0, 0.2], masked) == [0, 1, 3]  # 0.9 by its run
    assert select([0.1, 0.2, 1.0, 0.3, 0.3, 1.0, 0.2], masked) == [3]
    assert select([0.1, 0.2, 1.0, 0.4, 0.3, 1.0, 0.2], masked, low_threshold=0.4) == [3]


def test_runs():
    assert [run.tolist() for run in runs(np.array([1, 1, 0, 1, 0, 0, 1], bool))] == [
        [0, 1],
        [3],
        [6],
    ]
    assert runs(np.zeros(3, bool)) == []


@given(
    st.lists(st.tuples(GRADES, st.booleans()), min_size=1, max_size=10).filter(
        lambda rows: any(masked for _, masked in rows)
    ),
    st.sampled_from([0.3, 0.9]),
    st.sampled_from([0.2, 0.4]),
)
def test_it_is_a_walk_over_the_runs(rows, threshold, low):
    expected, start = set(), 0
    for masked, group in groupby(rows, key=lambda row: row[1]):
        sure = [confidence for confidence, _ in group]
        if masked:
            expected |= {start + i for i, c in enumerate(sure) if c > threshold}
            if max(sure) > low:
                expected.add(start + sure.index(max(sure)))
        start += len(sure)
    open_ = [i for i, (_, masked) in enumerate(rows) if masked]
    expected.add(max(open_, key=lambda i: (rows[i][0], -i)))
    confidence, masked = zip(*rows, strict=True)
    found = select(confidence, masked, threshold=threshold, low_threshold=low)
    assert found == sorted(expected)


def test_deferred_tokens_leave_their_run_to_another():
    said = blocks.prediction([0.99, 0.5, 0.45], [7, 1, 1])
    sampler = blocks.build("hierarchy", defer_ids=(7,))
    assert blocks.select(sampler, said, blocks.state([1, 1, 1])) == [1]
    assert blocks.select(sampler, said, blocks.state([1, 0, 0])) == [0]
