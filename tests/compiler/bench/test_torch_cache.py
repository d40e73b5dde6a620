import pytest
import torch

from dlmc.bench import isolated
from dlmc.bench.generation import Contestant, EngineContestant, race
from dlmc.bench.isolated import Probe
from dlmc.bench.timing import TimingEngine
from dlmc.bench.torch_loop import TorchContestant, TorchLoop
from dlmc_runtime.generate import Generator
from dlmc_runtime.samplers.config import SamplerConfig

QUESTIONS = ("458+386=?", "sort 7 3 9 1 4 4")
PACES = ({"steps": 4}, {"threshold": 0.9})


@pytest.fixture(scope="module")
def loop(cached_bundle):
    return TorchLoop.load(cached_bundle, "float32")


@pytest.fixture
def cached(cached_bundle):
    with Generator.of(cached_bundle, "onnxruntime-cpu") as generator:
        yield generator


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("pace", PACES, ids=str)
def test_tokens_and_forwards_are_those_of_the_runtime(cache, pace, cached, loop):
    sampler = SamplerConfig(block_length=16, cache=cache).updated(**pace)
    contestants: list[Contestant] = [
        EngineContestant("engine", cached),
        TorchContestant("torch", loop),
    ]
    for question in QUESTIONS:
        prompt = cached.text.chat([{"role": "user", "content": question}])
        request = cached.request(prompt, sampler=sampler, max_new_tokens=48, ignore_eos=True)
        engine, reference = race(contestants, request)
        assert len(engine.answer.tokens) == 48
        assert reference.answer.tokens == engine.answer.tokens
        kinds = [[f.kind for f in one.answer.forwards] for one in (engine, reference)]
        assert kinds[0] == kinds[1]
        assert kinds[0].count("refresh") == 3


def test_what_is_fed_shrinks_with_the_cache(cached, loop):
    fed = {}
    for cache in ("none", "prefix", "dual"):
        sampler = SamplerConfig(steps=2, block_length=16, cache=cache)
        request = cached.request([5, 6, 7, 8], sampler=sampler, max_new_tokens=32, ignore_eos=True)
        fed[cache] = [forward.positions for forward in loop.start(request).steps()]
    assert fed == {"none": [36] * 4, "prefix": [36, 32, 36, 16], "dual": [36, 16, 36, 16]}


def test_a_block_is_put_beside_what_is_cached_of_the_rest(cached, loop):
    sampler = SamplerConfig(steps=2, block_length=16, cache="dual")
    row = loop.start(cached.request([5, 6], sampler=sampler, max_new_tokens=32))
    steps = row.steps()
    next(steps)
    keys, _ = row._kept(2, 18)[0]
    whole = row.present[0][0]
    assert torch.equal(keys, torch.cat((whole[:, :, :2], whole[:, :, 18:]), 2))


def test_a_cache_is_renewed_in_its_longest_profile(cached):
    found = isolated.uses(cached.manifest, cached.profiles)
    longest = max(profile.block for profile in cached.profiles)
    for use in found:
        renews = bool(use.profile.cache) and use.profile.block == longest
        assert use.kind == ("refresh" if renews else "denoise")
        probe = Probe(cached.engine, use)
        assert bool(probe.stores) == renews
        assert probe.seconds() > 0
    assert sum(use.kind == "refresh" for use in found) == 1


def test_the_first_forward_of_a_block_is_a_refresh(cached):
    timed = TimingEngine(cached.engine)
    sampler = SamplerConfig(steps=4, block_length=16, cache="dual")
    Generator(timed, None).generate([5, 6, 7], max_new_tokens=32, sampler=sampler, ignore_eos=True)
    kinds = [forward.kind for forward in timed.forwards]
    assert kinds == ["refresh", "denoise", "denoise", "denoise"] * 2
