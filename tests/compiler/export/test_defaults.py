from dataclasses import replace

import pytest

from dlmc.export.defaults import TOLERANCES, default_profiles
from dlmc.export.graph_io import graph_outputs
from dlmc_runtime.manifest import Profile


@pytest.fixture
def spec(checkpoint):
    return checkpoint.spec


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (32768, ((4, 2048, 4), (256, 2048, 1))),
        (512, ((4, 512, 4), (256, 512, 1))),
        (64, ((4, 64, 4), (64, 64, 1))),
    ],
)
def test_cached_families_denoise_and_prefill(spec, longest, expected):
    found = default_profiles(replace(spec, max_position_embeddings=longest))
    assert found == tuple(
        Profile(batch=1, block=block, cache=cache, rows=rows) for block, cache, rows in expected
    )


def test_prefill_stores_whole_blocks(spec):
    odd = replace(spec, block_length=48, max_position_embeddings=2048)
    assert default_profiles(odd)[1].block == 240
    long = replace(spec, block_length=512, max_position_embeddings=2048)
    assert default_profiles(long)[1].block == 512


@pytest.mark.parametrize(("longest", "canvas"), [(4096, 256), (100, 100)])
def test_families_that_see_everything_can_also_do_so_over_a_cache(spec, longest, canvas):
    full = replace(spec, regime="full", block_length=32, max_position_embeddings=longest)
    shapes = [(canvas, 0, 32), (32, canvas, 32), (canvas // 2, canvas, 32), (canvas, canvas, 32)]
    assert default_profiles(full) == tuple(
        Profile(batch=1, block=block, cache=cache, rows=rows) for block, cache, rows in shapes
    )


def test_every_floating_point_output_has_a_tolerance(config):
    floats = {o.name for o in graph_outputs(config, 4, "logits") if o.dtype == "float32"}
    assert {name.split(".")[0] for name in floats} == TOLERANCES.keys()
