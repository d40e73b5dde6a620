import numpy as np
import pytest

from dlmc_runtime.samplers.base import BlockState, Prediction
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.random import Random


def select(noise, masked, step, masks, steps):
    prediction = Prediction(
        tokens=np.zeros(len(masked), np.int64),
        confidence=np.linspace(1, 0, len(masked)),
        noise=None if noise is None else np.array(noise),
    )
    sampler = Random(SamplerConfig(name="random", steps=steps))
    chosen = sampler.select(prediction, BlockState(np.array(masked, bool), step, masks))
    return np.flatnonzero(chosen).tolist()


def test_noise_decides_and_confidence_does_not():
    assert select([0.1, 0.2, 0.9, 0.8], [1, 1, 1, 1], 0, 4, 2) == [2, 3]
    assert select([0.1, 0.2, 0.9, 0.8], [1, 1, 0, 0], 1, 4, 2) == [0, 1]


def test_the_loop_must_draw_noise():
    assert Random.noisy
    with pytest.raises(ValueError, match="uniform number"):
        select(None, [1, 1], 0, 2, 1)
