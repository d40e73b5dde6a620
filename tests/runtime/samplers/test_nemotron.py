import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import samplers

GRADES = st.integers(0, 20).map(lambda grade: grade / 20)
BLOCKS = st.lists(st.tuples(GRADES, st.booleans()), min_size=1, max_size=9).filter(
    lambda rows: any(masked for _, masked in rows)
)
NAMES = ("fixed", "confidence_threshold_ref", "confidence_threshold_bound", "cumulative_error")


def select(name, confidence, masked=None, **options):
    masked = [1] * len(confidence) if masked is None else masked
    sampler = blocks.build(name, **options)
    return blocks.select(sampler, blocks.prediction(confidence), blocks.state(masked))


def test_fixed_by_hand():
    assert select("fixed", [0.2, 0.95, 0.9]) == [1]
    assert select("fixed", [0.2, 0.95, 0.9], most=2) == [1, 2]
    assert select("fixed", [0.2, 0.95, 0.9], most=3) == [1, 2]  # 0.2 is below 0.9
    assert select("fixed", [0.2, 0.1, 0.3], most=3) == [2]


def test_the_prefix_passes_both_bounds():
    # 1 - factor / (rank + 1) in ranks 2, 3, 4: 2/3, 3/4, 4/5
    sure = [0.99, 0.7, 0.74, 0.9]
    assert select("confidence_threshold_ref", sure, threshold=0.5) == [0, 3]  # 0.74 < 3/4
    assert select("confidence_threshold_ref", [0.99, 0.7, 0.76, 0.9], threshold=0.5) == [0, 2, 3]
    assert select("confidence_threshold_ref", sure) == [0, 3]
    assert select("confidence_threshold_ref", sure, threshold=0.95) == [0]
    assert select("confidence_threshold_ref", sure, threshold=0.5, factor=2.0) == [0, 1, 2, 3]


def test_the_bound_takes_what_passes_either_rule():
    # With factor 2: 1/3, 1/2, 3/5, 2/3
    sure = [0.95, 0.5, 0.45, 0.44]
    assert select("confidence_threshold_bound", sure) == [0, 1]  # 0.45 < 1/2
    assert select("confidence_threshold_bound", [0.95, 0.4, 0.1]) == [0]  # 0.4 < 0.45
    assert select("confidence_threshold_bound", [0.95, 0.4], min_threshold=0.3) == [0, 1]
    assert select("confidence_threshold_bound", sure, threshold=0.4) == [0, 1, 2, 3]
    assert select("confidence_threshold_bound", sure, threshold=0.4, most=2) == [0, 1]


def test_the_errors_add_up():
    assert select("cumulative_error", [0.9, 0.9, 0.9], threshold=0.8) == [0, 1]  # 0.81, 0.729
    assert select("cumulative_error", [0.5, 0.9], threshold=0.8) == [1]
    assert select("cumulative_error", [0.1, 0.2], threshold=0.8) == [1]
    assert select("cumulative_error", [0.0, 0.0], threshold=0.8) == [0]


def keeps(name, rank, sure, so_far, options):
    """Return whether a rank from 0 is kept, by the rule of mlx-vlm; ``so_far``: all before were."""
    threshold = options["threshold"]
    bound = -1.0 if rank == 0 else 1 - options["factor"] / (rank + 2)
    if name == "fixed":
        return rank < options["most"] and sure[rank] >= threshold
    if name == "confidence_threshold_ref":
        return so_far and sure[rank] >= threshold and sure[rank] >= bound
    if name == "confidence_threshold_bound":
        loose = sure[rank] >= options["min_threshold"] and sure[rank] >= bound
        return sure[rank] >= threshold or loose
    logs = [np.log(max(c, 1e-12)) for c in sure[: rank + 1]]
    return float(np.cumsum(logs)[-1]) >= np.log(threshold)


@pytest.mark.parametrize("name", NAMES)
@given(rows=BLOCKS, threshold=st.sampled_from([0.3, 0.62, 0.9]), most=st.integers(1, 9))
def test_the_rules_rank_by_rank(name, rows, threshold, most):
    options = {"threshold": threshold, "factor": 1.7, "min_threshold": 0.35, "most": most}
    order = sorted((i for i, row in enumerate(rows) if row[1]), key=lambda i: -rows[i][0])
    sure = [rows[i][0] for i in order]
    expected, so_far = [order[0]], True
    for rank, position in enumerate(order):
        kept = keeps(name, rank, sure, so_far, options)
        so_far = so_far and kept
        if kept and 0 < rank < most:
            expected.append(position)
    heeded = {k: v for k, v in options.items() if k in samplers.find(name).heeds}
    confidence, masked = zip(*rows, strict=True)
    assert select(name, confidence, masked, **heeded) == sorted(expected)


def test_defaults():
    assert samplers.find("fixed").defaults == {"threshold": 0.9, "most": 1}
    assert samplers.find("cumulative_error").defaults == {"threshold": 0.9}
    assert samplers.find("confidence_threshold_ref").defaults == {"threshold": 0.9, "factor": 1.0}
    bound = samplers.find("confidence_threshold_bound").defaults
    assert bound == {"threshold": 0.9, "factor": 2.0, "min_threshold": 0.45}


@pytest.mark.parametrize("name", NAMES)
def test_confidence_is_taken_after_temperature(name):
    assert samplers.find(name).tempered
