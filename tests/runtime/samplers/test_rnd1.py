import blocks
import numpy as np
import pytest


def reference(entropies, steps):
    """Return what each forward commits, as RND1's `diffusion_sample` keeps the least certain."""
    masks = entropies.shape[1]
    open_, history = set(range(masks)), []
    for forward, step in enumerate(range(steps - 1, 0, -1)):
        stay = int(np.float32(masks) * np.float32(step / steps))
        worst = sorted(open_, key=entropies[forward].__getitem__, reverse=True)
        taken = open_ - set(worst[:stay])
        history.append(sorted(taken))
        open_ -= taken
        if not open_:
            return history
    return [*history, sorted(open_)]


@pytest.mark.parametrize(("masks", "steps"), [(10, 4), (9, 9), (7, 1), (16, 3), (12, 11), (29, 10)])
def test_the_least_certain_stay_masked(masks, steps):
    entropies = np.random.default_rng(masks).random((steps, masks)) * 3
    sampler = blocks.build("entropy", steps=steps, schedule="rnd1")
    found = blocks.denoise(
        sampler,
        [1] * masks,
        lambda forward: blocks.prediction([0.5] * masks, entropy=entropies[forward]),
    )
    assert found == reference(entropies, steps)


def test_steps_that_commit_nothing_are_left_out():
    entropies = np.random.default_rng(0).random((8, 3))
    found = blocks.denoise(
        blocks.build("entropy", steps=8, schedule="rnd1"),
        [1] * 3,
        lambda forward: blocks.prediction([0.5] * 3, entropy=entropies[forward]),
    )
    assert [len(positions) for positions in found] == [1, 1, 1]


def test_the_bound_is_cut_short_at_the_last_step():
    sampler = blocks.build("entropy_bounded", order="confidence", gamma=0.0, steps=3)
    said = blocks.prediction([0.9, 0.8, 0.7, 0.6], entropy=[1.0] * 4)
    assert blocks.denoise(sampler, [1] * 4, lambda _: said) == [[0], [1], [2, 3]]
