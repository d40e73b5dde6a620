import pytest

from dlmc.denoiser.config import DenoiserConfig
from dlmc.families import Overrides, detect
from dlmc.recipes import load
from dlmc.targets.sizes import cache_bytes, weight_bytes
from dlmc_runtime.manifest import Profile

SMALL = DenoiserConfig(
    vocab_size=10,
    hidden_size=4,
    intermediate_size=6,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=3,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
)
LAYERS = 2 * (4 * 6 + 6 * 4 + 2 * 4 * 3 + 3 * 4 * 6)  # q, o, k and v, the three of the MLP
VOCABULARY = 2 * 10 * 4


@pytest.mark.parametrize(
    ("precision", "quantization", "wanted"),
    [
        ("float32", "none", 4 * (LAYERS + VOCABULARY)),
        ("bfloat16", "none", 2 * (LAYERS + VOCABULARY)),
        ("float32", "int8", LAYERS + 4 * VOCABULARY),
        ("float16", "w8a8", LAYERS + 2 * VOCABULARY),
        ("bfloat16", "int4", LAYERS * 9 // 16 + 2 * VOCABULARY),
    ],
)
def test_weights_are_counted_by_their_bits(precision, quantization, wanted):
    assert weight_bytes(SMALL, precision, quantization) == wanted


def test_a_cache_holds_keys_and_values_of_every_layer():
    profile = Profile(batch=3, block=4, cache=5, rows=1)
    assert cache_bytes(SMALL, profile, "bfloat16") == 3 * 9 * 2 * 2 * 3 * 2


@pytest.mark.parametrize(
    "name",
    [
        "llada-8b-instruct",
        "sdar-1.7b-chat",
        "tiny-sdar",
        "llada2.0-mini",
        "llada-moe-7b-a1b-base",
        "rnd1-base-0910",
        "diffusiongemma-26b-a4b-it",
    ],
)
def test_the_sizes_of_real_networks_are_theirs(name):
    recipe = load(name)
    spec = detect(recipe.config).read(recipe.config, recipe.generation_config, Overrides())
    assert recipe.parameters is not None
    norms = 1e-2  # not counted
    found = weight_bytes(spec.denoiser, "bfloat16") / 2
    assert found == pytest.approx(recipe.parameters, rel=norms)
