import blocks
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import samplers

GRADES = st.integers(0, 10).map(lambda grade: grade / 10)


def select(confidence, masked, **options):
    sampler = blocks.build("linear_speculation", **options)
    return blocks.select(sampler, blocks.prediction(confidence), blocks.state(masked))


def test_a_draft_comes_from_one_forward():
    assert select([0.9, 0.1, 0.2], [0, 1, 1]) == [1, 2]


def test_a_threshold_fills_what_is_sure_or_else_the_best():
    assert select([0.9, 0.1, 0.8, 0.7], [0, 1, 1, 1], threshold=0.7) == [2, 3]
    assert select([0.9, 0.1, 0.2, 0.2], [0, 1, 1, 1], threshold=0.7) == [2]


@given(st.lists(GRADES, min_size=1, max_size=8), GRADES.filter(bool))
def test_a_draft_ends(confidence, threshold):
    sampler = blocks.build("linear_speculation", threshold=threshold)
    said = blocks.prediction(confidence)
    history = blocks.denoise(sampler, [1] * len(confidence), lambda _: said)
    assert sorted(position for positions in history for position in positions) == list(
        range(len(confidence))
    )
    unsure = sum(c < threshold for c in confidence)
    assert len(history) == unsure + (unsure < len(confidence))


def test_the_causal_pass_drafts_nothing():
    assert (
        blocks.select(blocks.build("autoregressive"), blocks.prediction([0.9]), blocks.state([1]))
        == []
    )
    assert samplers.find("autoregressive").tempered
    assert samplers.find("autoregressive").heeds == frozenset()
