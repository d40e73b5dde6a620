import numpy as np
import torch

from dlmc.denoiser.mlp import Mlp


def test_is_a_gated_silu():
    torch.manual_seed(0)
    mlp = Mlp(16, 24)
    x = np.random.default_rng(0).standard_normal((2, 3, 16))
    gate, up, down = (
        x.weight.detach().numpy().T for x in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    )
    silu = (x @ gate) / (1 + np.exp(-(x @ gate)))
    found = mlp(torch.tensor(x, dtype=torch.float32)).detach()
    np.testing.assert_allclose(found, silu * (x @ up) @ down, atol=1e-5)
