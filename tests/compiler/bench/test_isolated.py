import numpy as np
import pytest

from dlmc.bench import isolated
from dlmc.bench.isolated import Probe, Use, uses
from dlmc_runtime.manifest import Profile


def test_uses_of_a_family_that_sees_the_whole_sequence(tiny, generator):
    if generator.manifest.attention.regime != "full":
        return
    longest = max(profile.block for profile in generator.profiles)
    found = uses(generator.manifest, generator.profiles)
    assert [use.profile for use in found] == list(generator.profiles)
    for use in found:
        renews = use.profile.cache > 0 and use.profile.block == longest
        assert use.kind == ("refresh" if renews else "denoise")
    assert {use.kind for use in found} == {"denoise", "refresh"}  # the recipe's profiles have both


@pytest.fixture
def block_manifest(tiny):
    from dlmc_runtime.bundle import Bundle

    return Bundle.open(tiny["tiny-sdar"], hashes=False).manifest


def test_uses_of_a_family_with_a_cache(block_manifest):
    denoise = Profile(batch=1, block=8, cache=96, rows=8)
    prefill = Profile(batch=1, block=32, cache=96, rows=1)
    assert uses(block_manifest, (prefill, denoise)) == [
        Use("prefill", prefill),
        Use("denoise", denoise),
        Use("commit", denoise),
    ]


def test_one_profile_may_serve_everything(block_manifest):
    only = Profile(batch=2, block=16, cache=96, rows=8)
    kinds = [use.kind for use in uses(block_manifest, (only,))]
    assert kinds == ["prefill", "denoise", "commit"]


def test_nothing_is_stored_where_there_is_no_cache(block_manifest):
    only = Profile(batch=1, block=8, cache=0, rows=8)
    assert uses(block_manifest, (only,)) == [Use("denoise", only)]


def test_every_use_runs_over_full_inputs(generator):
    manifest = generator.manifest
    for use in uses(manifest, generator.profiles):
        probe = Probe(generator.engine, use)
        cache = use.profile.cache
        assert probe.inputs.attention_mask[..., cache:].all()
        # What a forward renews is not looked at.
        past = probe.inputs.attention_mask[..., :cache]
        assert not past.any() if use.kind == "refresh" else past.all()
        assert not np.isin(probe.inputs.input_ids, manifest.tokens.suppressed).any()
        assert probe.inputs.position_ids.max() < manifest.model.max_position_embeddings
        assert probe.seconds() > 0
        assert bool(probe.stores) == (use.kind != "denoise")


def test_a_probe_can_store_again_and_again(generator):
    for use in uses(generator.manifest, generator.profiles):
        probe = Probe(generator.engine, use)
        filled = probe.cache.filled.copy()
        for _ in range(3):
            probe.seconds()
        assert (probe.cache.filled == filled).all()


def test_a_prefill_fills_the_cache_in_whole_blocks(generator):
    length = generator.manifest.attention.block_length
    for use in uses(generator.manifest, generator.profiles):
        for store in Probe(generator.engine, use).stores:
            assert store.count % length == 0
            assert 0 < store.count <= min(use.profile.block, use.profile.cache)


def test_three_forwards_at_least_and_no_more_than_asked(generator, monkeypatch):
    monkeypatch.setattr(Probe, "seconds", lambda self: 1.0)
    use = uses(generator.manifest, generator.profiles)[0]
    assert isolated.measure(generator.engine, use, repeats=10, budget=0.5) == [1.0] * 3
    assert isolated.measure(generator.engine, use, repeats=10, budget=5.0) == [1.0] * 5
    assert isolated.measure(generator.engine, use, repeats=4, budget=99.0) == [1.0] * 4
