import numpy as np
import torch

from dlmc.denoiser.norm import LayerNorm, RmsNorm


def test_divides_by_the_root_mean_square():
    x = np.random.default_rng(0).standard_normal((2, 3, 16)).astype(np.float32) * 5
    norm = RmsNorm(16, 1e-5)
    weight = np.linspace(0.5, 2, 16, dtype=np.float32)
    norm.weight.data = torch.tensor(weight)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(norm(torch.tensor(x)).detach(), expected, rtol=1e-5)


def test_epsilon_keeps_zero_at_zero():
    assert not RmsNorm(8, 1e-6)(torch.zeros(1, 8)).any()


def test_computes_in_float32_and_keeps_the_dtype():
    x = torch.full((1, 8), 300.0, dtype=torch.float16)  # its square leaves float16
    result = RmsNorm(8, 1e-6).half()(x)
    assert result.dtype == torch.float16
    torch.testing.assert_close(result, torch.ones_like(x))


def test_layer_norm_is_computed_in_float32():
    torch.manual_seed(0)
    norm = LayerNorm(16, 1e-5)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
    x = 100 * torch.randn(3, 16) + 50
    wide = x.double()
    expected = (wide - wide.mean(-1, keepdim=True)) / (wide.var(-1, correction=0) + 1e-5).sqrt()[
        :, None
    ]
    torch.testing.assert_close(
        norm(x), (expected * norm.weight.double()).float(), rtol=1e-4, atol=1e-5
    )
    low = norm.to(torch.bfloat16)(x.to(torch.bfloat16))
    assert low.dtype == torch.bfloat16
