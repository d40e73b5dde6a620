import json

import pytest
import torch
from safetensors.torch import load_file

from checkpoint import read_spec, write_checkpoint
from dlmc import families
from dlmc.denoiser.network import network
from dlmc.recipes import load
from train import LAYOUTS


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


def test_a_checkpoint_holds_the_weights_under_the_names_of_the_family(layout, tmp_path):
    recipe = load(layout.recipe)
    torch.manual_seed(0)
    denoiser = network(read_spec(recipe).denoiser)
    layout.initialise(denoiser)
    write_checkpoint(denoiser, recipe, layout.vocabulary, tmp_path)

    config, generation = (
        json.loads((tmp_path / name).read_text())
        for name in ("config.json", "generation_config.json")
    )
    family = families.detect(config, None)
    spec = family.read(config, generation, families.Overrides())
    assert spec == read_spec(recipe)
    stored, names = load_file(tmp_path / "model.safetensors"), family.weight_names(spec)
    assert stored.keys() == set(names.values())
    for ours, weight in denoiser.named_parameters():
        torch.testing.assert_close(stored[names[ours]], weight.detach().to(torch.bfloat16))
