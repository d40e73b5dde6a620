import blocks
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import samplers

NATS = st.floats(0, 3, allow_subnormal=False)


def select(entropy, masked=None, **options):
    masked = [1] * len(entropy) if masked is None else masked
    said = blocks.prediction(np.full(len(entropy), 0.5), entropy=entropy)
    return blocks.select(blocks.build("entropy_bounded", **options), said, blocks.state(masked))


def test_by_hand():
    assert select([0.3, 0.1, 0.2, 2.0]) == [0, 1, 2]  # 0.1 + 0.2 before 0.3, 0.6 before 2.0
    assert select([0.3, 0.1, 0.2, 2.0], gamma=0.7) == [0, 1, 2, 3]
    assert select([0.3, 0.1, 0.2, 2.0], gamma=0.1) == [1, 2]
    assert select([0.3, 0.1, 0.2, 2.0], [1, 0, 0, 1]) == [0, 3]
    assert select([2.0, 1.0], gamma=0.0) == [1]
    assert select([0.0, 1.0, 0.0], gamma=0.0) == [0, 1, 2]  # nothing is spent on what is certain


def test_in_order_of_confidence_by_hand():
    said = blocks.prediction([0.9, 0.8, 0.7, 0.6], entropy=[0.5, 0.25, 1.0, 0.125])

    def taken(gamma, masked=(1, 1, 1, 1)):
        sampler = blocks.build("entropy_bounded", order="confidence", gamma=gamma)
        return blocks.select(sampler, said, blocks.state(masked))

    assert taken(0.0) == [0]
    assert taken(0.25) == [0, 1]  # without the largest: 0.25
    assert taken(0.75) == [0, 1, 2]  # 0.5 + 0.25
    assert taken(0.875) == [0, 1, 2, 3]
    assert taken(0.25, (0, 1, 1, 0)) == [1, 2]


GRADES = st.integers(0, 16).map(lambda grade: grade / 8)  # sums of these are exact
ROWS = st.lists(st.tuples(st.floats(0.01, 1), GRADES, st.booleans()), min_size=1, max_size=9)


@given(
    ROWS.filter(lambda rows: any(masked for *_, masked in rows)), st.sampled_from([0.0, 0.4, 2.0])
)
def test_in_order_of_confidence_it_is_rnd1s_rule(rows, gamma):
    confidence, entropy, masked = zip(*rows, strict=True)
    order = sorted((i for i in range(len(rows)) if masked[i]), key=lambda i: -confidence[i])
    together, most, valid = 0.0, 0.0, 0
    for i in order:  # accumulated entropy less the largest so far
        together, most = together + entropy[i], max(most, entropy[i])
        valid += together - most <= gamma
    said = blocks.prediction(confidence, entropy=entropy)
    sampler = blocks.build("entropy_bounded", order="confidence", gamma=gamma)
    assert blocks.select(sampler, said, blocks.state(masked)) == sorted(order[:valid])


@given(
    st.lists(st.tuples(NATS, st.booleans()), min_size=1, max_size=9).filter(
        lambda rows: any(masked for _, masked in rows)
    ),
    st.sampled_from([0.0, 0.35, 1.0, 4.0]),
)
def test_it_is_the_largest_set_whose_sum_without_its_largest_is_within_the_bound(rows, gamma):
    order = sorted((entropy, i) for i, (entropy, masked) in enumerate(rows) if masked)
    expected = [order[0][1]]
    for count in range(2, len(order) + 1):
        spent = sum(entropy for entropy, _ in order[:count]) - order[count - 1][0]
        if spent <= gamma - 1e-9:
            expected = [i for _, i in order[:count]]
        elif spent <= gamma + 1e-9:
            return  # too close to call
    entropy, masked = zip(*rows, strict=True)
    assert select(entropy, masked, gamma=gamma) == sorted(expected)


def test_entropy_is_of_the_tempered_distribution():
    kind = samplers.find("entropy_bounded")
    assert kind.tempered
    assert kind.needs == {"entropy"}
    with pytest.raises(ValueError, match="entropies"):
        blocks.select(blocks.build("entropy_bounded"), blocks.prediction([0.5]), blocks.state([1]))
