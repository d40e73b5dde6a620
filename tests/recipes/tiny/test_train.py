import pytest
import torch

import train
from checkpoint import read_spec
from dlmc.denoiser.network import network
from dlmc.recipes import load


@pytest.fixture(scope="module", params=train.LAYOUTS)
def layout(request):
    return train.LAYOUTS[request.param]


def test_a_stack_of_matrices_is_trained_part_by_part():
    whole = torch.nn.Parameter(torch.arange(60.0).view(3, 4, 5))
    before = whole.detach().clone()
    parts = train.split(whole)
    (whole * torch.arange(3.0).view(3, 1, 1)).sum().backward()
    torch.optim.SGD(parts, lr=0.5).step()
    expected = before - 0.5 * torch.arange(3.0).view(3, 1, 1)
    torch.testing.assert_close(whole.detach(), expected)


def test_the_optimizers_share_out_every_weight(layout):
    denoiser = network(read_spec(load(layout.recipe)).denoiser)
    muon, adam = train.optimizers(denoiser)
    sizes = [sum(w.numel() for w in one.param_groups[0]["params"]) for one in (muon, adam)]
    assert sum(sizes) == sum(w.numel() for w in denoiser.parameters())
    assert all(w.ndim == 2 for w in muon.param_groups[0]["params"])
    assert any(w is denoiser.embed_tokens.weight for w in adam.param_groups[0]["params"])


def test_a_batch_is_a_function_of_the_step(layout):
    source = train.Source(layout, seed=0)
    first, same, other = (source.batch("facts", step) for step in (5, 5, 6))
    assert torch.equal(first.targets, same.targets)
    assert first.targets.shape != other.targets.shape or not torch.equal(
        first.targets, other.targets
    )
