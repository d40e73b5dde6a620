from dataclasses import replace

import pytest
import torch

from dlmc import recipes
from dlmc.denoiser.denoiser import Denoiser
from dlmc.denoiser.gemma import GemmaDenoiser
from dlmc.denoiser.network import Network, network
from dlmc.families import Overrides, detect


def built(recipe: str) -> Network:
    chosen = recipes.load(recipe)
    family = detect(chosen.config, prefer=chosen.family)
    config = family.read(chosen.config, chosen.generation_config, Overrides()).denoiser
    kinds = config.kinds[-2:]
    short = config.with_kinds(kinds) if kinds else replace(config, num_hidden_layers=2)
    with torch.device("meta"):
        return network(short)


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ("diffusiongemma-26b-a4b-it", GemmaDenoiser),
        ("llada2.0-mini", Denoiser),
        ("sdar-1.7b-chat", Denoiser),
        ("modernbert-base-chat", Denoiser),
    ],
)
def test_every_configuration_has_its_network(recipe: str, kind: type[Network]):
    assert type(built(recipe)) is kind


def test_it_is_made_where_the_caller_says():
    found = built("diffusiongemma-26b-a4b-it")
    assert {weight.device.type for weight in found.parameters()} == {"meta"}
    assert len(found.layers) == 2
