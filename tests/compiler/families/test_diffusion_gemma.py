import json
from pathlib import Path

import pytest

from dlmc.families.diffusion_gemma import DIFFUSION_GEMMA
from dlmc.families.spec import Overrides
from dlmc_runtime.errors import CheckpointError

CONFIG = Path(__file__).parents[2] / "goldens" / "diffusion_gemma" / "config.json"


def full_layers(stated):
    """Return heads and head size of the full layer, where ``per_layer_config`` says so."""
    config = json.loads(CONFIG.read_text())
    for key in ("global_head_dim", "num_global_key_value_heads"):
        del config["text_config"][key]
    config["text_config"]["per_layer_config"] = stated
    return DIFFUSION_GEMMA.read(config, {}, Overrides()).denoiser.cache_shape("full")


@pytest.mark.parametrize(
    ("stated", "shape"),
    [
        ({"3": {"head_dim": 32, "num_key_value_heads": 1}}, (1, 32)),
        ({"3": {"head_dim": 32}}, (2, 32)),
        ({"3": {"num_key_value_heads": 1}}, (1, 16)),
        ({"3": {}}, (2, 16)),
        ({}, (2, 16)),
    ],
)
def test_a_full_layer_states_what_it_does_not_share(stated, shape):
    assert full_layers(stated) == shape


@pytest.mark.parametrize("stated", [{"0": {}}, {"3": 1}, [], {"3": {"head_dim": 0}}])
def test_what_states_no_full_layer_is_refused(stated):
    with pytest.raises(CheckpointError, match="per_layer_config"):
        full_layers(stated)


def test_canvases_begin_where_the_prompt_ends():
    spec = DIFFUSION_GEMMA.read(json.loads(CONFIG.read_text()), {}, Overrides())
    assert (spec.aligned_to, spec.last_block, spec.mask_id) == ("answer", "whole", None)
