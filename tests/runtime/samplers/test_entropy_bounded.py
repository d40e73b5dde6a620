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
