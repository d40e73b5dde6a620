import numpy as np
import torch

from dlmc.denoiser.rope import Rope, inverse_frequencies, rotate


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
