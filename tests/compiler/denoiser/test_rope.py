from dataclasses import replace

import numpy as np
import pytest
import torch

from dlmc.denoiser.config import QueryScale, Yarn
from dlmc.denoiser.rope import Rope, ScaledTurn, inverse_frequencies, rotate


def test_rotates_pairs_half_a_head_apart():
    x = np.random.default_rng(0).standard_normal((1, 1, 3, 8))
    positions = np.array([0, 5, 4000])
    angles = positions[:, None] * 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angles)
    expected = np.concatenate((turned.real, turned.imag), -1)
    rope = Rope(8, 10_000.0)(torch.tensor(positions)[None])
    found = rotate(torch.tensor(x, dtype=torch.float32), *rope)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    np.testing.assert_array_equal(found[0, 0, 0], x[0, 0, 0].astype(np.float32))


def test_scores_depend_on_distance_only():
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0))
    rope = Rope(16, 500_000.0)

    def score(query_position: int, key_position: int) -> float:
        turned = [
            rotate(x, *rope(torch.tensor([[position]])))
            for x, position in ((query, query_position), (key, key_position))
        ]
        return float((turned[0] * turned[1]).sum())

    assert abs(score(3, 10) - score(103, 110)) < 1e-4


def test_states_its_constants_on_the_meta_device():
    with torch.device("meta"):
        rope = Rope(16, 1e6)
    assert rope.inv_freq.is_meta
    torch.testing.assert_close(rope.constants()["inv_freq"], inverse_frequencies(16, 1e6))
    torch.testing.assert_close(Rope(16, 1e6).inv_freq, inverse_frequencies(16, 1e6))
    assert not rope.state_dict()


def test_keeps_the_dtype_and_computes_in_float32():
    x = torch.randn(1, 1, 2, 8, generator=torch.Generator().manual_seed(0))
    rope = Rope(8, 1e4)(torch.tensor([[0, 1000]]))
    low = rotate(x.to(torch.bfloat16), *rope)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), rotate(x, *rope), rtol=0.02, atol=0.02)


YARN = Yarn(
    factor=16.0, original_positions=16384, beta_fast=32.0, beta_slow=1.0, attention_factor=1.0
)


def stretched(head_dim, theta, yarn):
    """YaRN, dimension by dimension, in float64."""
    found = []
    for i in range(head_dim // 2):
        frequency = theta ** (-2 * i / head_dim)

        def bound(turns):
            return (
                head_dim
                * np.log(yarn.original_positions / (turns * 2 * np.pi))
                / (2 * np.log(theta))
            )

        low, high = max(np.floor(bound(yarn.beta_fast)), 0), np.ceil(bound(yarn.beta_slow))
        high = min(high, head_dim - 1)
        slow = np.clip((i - low) / ((high - low) or 0.001), 0, 1)
        found.append(frequency / yarn.factor * slow + frequency * (1 - slow))
    return np.array(found)


@pytest.mark.parametrize(
    ("head_dim", "theta", "yarn"),
    [
        (128, 1e6, YARN),
        (128, 1e9, YARN),
        (16, 1e6, replace(YARN, factor=4.0, original_positions=16)),
        (64, 1e4, replace(YARN, beta_fast=1.0)),
    ],
)
def test_yarn_stretches_slow_frequencies(head_dim, theta, yarn):
    found = inverse_frequencies(head_dim, theta, yarn)
    np.testing.assert_allclose(found, stretched(head_dim, theta, yarn), rtol=1e-5)
    plain = inverse_frequencies(head_dim, theta)
    assert (found <= plain * 1.000001).all()
    assert (found >= plain / yarn.factor * 0.999999).all()


def test_an_attention_factor_scales_cosines_and_sines():
    positions = torch.arange(5)[None]
    plain = Rope(16, 1e4, YARN)(positions)
    scaled = Rope(16, 1e4, replace(YARN, attention_factor=1.5))(positions)
    for one, other in zip(plain, scaled, strict=True):
        torch.testing.assert_close(other, one * 1.5)


def test_yarn_states_its_constants():
    with torch.device("meta"):
        rope = Rope(16, 1e6, YARN)
    torch.testing.assert_close(rope.constants()["inv_freq"], Rope(16, 1e6, YARN).inv_freq)


def test_queries_grow_with_their_position():
    positions = torch.tensor([[0, 15, 16, 31, 32, 262143]])
    rope = torch.ones(1, 1, 6, 8), torch.ones(1, 1, 6, 8)
    cos, sin = ScaledTurn(QueryScale(beta=0.1, positions=16))(positions, rope)
    expected = 1 + 0.1 * np.log1p(positions[0].numpy() // 16)
    np.testing.assert_allclose(cos[0, 0, :, 3], expected, rtol=1e-6)
    torch.testing.assert_close(cos, sin)
    assert cos[0, 0, 0, 0] == cos[0, 0, 1, 0] == 1.0
