import blocks
import pytest

from dlmc_runtime.samplers.random import Random


def select(noise, masked, step, masks, **options):
    said = blocks.prediction([0.9 - 0.1 * i for i in range(len(masked))], noise=noise)
    block = blocks.state(masked, step, masks=masks)
    return blocks.select(blocks.build("random", **options), said, block)


def test_noise_decides_and_confidence_does_not():
    assert select([0.1, 0.2, 0.9, 0.8], [1, 1, 1, 1], 0, 4, steps=2) == [2, 3]
    assert select([0.1, 0.2, 0.9, 0.8], [1, 1, 0, 0], 1, 4, steps=2) == [0, 1]


def test_it_keeps_to_a_schedule():
    assert select([0.1, 0.2, 0.9, 0.8, 0.7], [1] * 5, 0, 5, steps=2) == [2, 3, 4]
    assert select([0.1, 0.2, 0.9, 0.8, 0.7], [1] * 5, 0, 5, steps=2, schedule="linear") == [2, 3]


def test_the_loop_must_draw_noise():
    assert Random.needs == {"noise"}
    with pytest.raises(ValueError, match="noise"):
        blocks.select(blocks.build("random"), blocks.prediction([0.5]), blocks.state([1]))
