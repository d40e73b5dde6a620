"""The promise of `test_promise`, for models whose canvases begin as random tokens.

Tokens depend on the model and the request: not on the batch, on padding, on how much of the
prompt a forward stores, nor on where that leaves off before the end of a window.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime.events import Committed, Denoised, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.renoise import Renoise, random_tokens

BLOCK, CONTEXT, EOS, PAD = 4, 5, 60, 61
FEW = settings(max_examples=15, derandomize=True, deadline=None)
PROMPTS = st.lists(st.integers(0, 63), min_size=1, max_size=14)
SAMPLERS = st.builds(
    SamplerConfig,
    name=st.just("renoise"),
    steps=st.integers(1, 6),
    entropy_bound=st.sampled_from([None, 0.0, 1.0, 5.0]),
    t_min=st.sampled_from([None, 0.0, 0.2]),
    t_max=st.sampled_from([None, 1.5]),
    stability_threshold=st.sampled_from([None, 0, 2]),
    confidence_threshold=st.sampled_from([None, 0.0, 0.5, 2.0]),
)
ASKED = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "max_new_tokens": st.integers(1, 14),
        "sampler": SAMPLERS,
        "seed": st.integers(0, 3),
        "ignore_eos": st.booleans(),
        "early_exit": st.booleans(),
        "keep_cache": st.booleans(),
    }
)


def profiles(batch=8, block=BLOCK, cache=32, chunk=16):
    shapes = ((block, BLOCK), (chunk, 1))
    return tuple(Profile(batch=batch, block=t, cache=cache, rows=r) for t, r in shapes)


@pytest.fixture(scope="module")
def engine(noise_engine):
    return noise_engine(profiles(), BLOCK, CONTEXT)


def reshaped(engine, **sizes):
    return TorchEngine(engine.module, engine.manifest, profiles(**sizes))


def run(engine, requests):
    """Return what matters of the results: everything but the time."""
    generator = Generator(engine, None)
    results = generator.run([generator.request(**options) for options in requests])
    return [replace(result, seconds=0.0) for result in results]


@FEW
@given(st.lists(ASKED, min_size=2, max_size=4))
def test_a_batch_gives_the_tokens_of_its_rows_alone(engine, requests):
    alone = [run(engine, [options])[0] for options in requests]
    assert run(engine, requests) == alone


@FEW
@given(ASKED, st.integers(2, 4), st.integers(5, 9), st.integers(33, 50))
def test_padding_changes_nothing(engine, options, batch, block, cache):
    tight = reshaped(engine, batch=1)
    padded = reshaped(engine, batch=batch, block=block, cache=cache)
    assert run(padded, [options]) == run(tight, [options])


@pytest.mark.parametrize("length", range(1, 2 * CONTEXT + 4))
def test_a_prompt_is_stored_alike_in_parts_of_any_size(engine, length):
    rng = np.random.default_rng(length)
    options = {
        "prompt": rng.integers(0, 64, length).tolist(),
        "max_new_tokens": 9,
        "sampler": SamplerConfig("renoise", steps=3, entropy_bound=1.0),
        "ignore_eos": True,
    }
    whole = run(reshaped(engine, batch=1, chunk=32), [options])[0]
    for chunk in range(BLOCK, length + 1):
        parts = run(reshaped(engine, batch=1, chunk=chunk), [options])[0]
        assert parts.tokens == whole.tokens
        assert parts.forwards == whole.forwards + -(-length // chunk) - 1


@FEW
@given(ASKED)
def test_going_on_to_the_end_changes_no_token(engine, options):
    ways = [{"early_exit": early, "keep_cache": keep} for early in (0, 1) for keep in (0, 1)]
    found = [run(engine, [{**options, **way}])[0] for way in ways]
    assert len({result.tokens for result in found}) == 1
    assert [result.forwards - found[0].forwards for result in found] == [0, 1, 0, 1]
    assert len({result.tokens_per_forward for result in found}) == 1


@settings(max_examples=60, derandomize=True, deadline=None)
@given(ASKED)
def test_the_loop_equals_one_without_cache_batch_or_ring(engine, options):
    generator = Generator(engine, None)
    request = generator.request(**{**options, "ignore_eos": True})
    assert generator.run([request])[0].tokens == plainly(engine.module, request)


def plainly(module, request):
    """Return the tokens of a request; everything before a canvas is read anew for each."""
    numbers, sampler = np.random.default_rng(request.seed), Renoise(request.sampler)
    text = list(request.prompt)
    while len(text) < len(request.prompt) + request.max_new_tokens:
        past = stored(module, text)
        canvas = random_tokens(numbers.random(BLOCK), 64)
        expected = torch.zeros(1, BLOCK, 32)
        sampler.begin()
        for step in range(sampler.steps):
            heat = torch.tensor([sampler.temperature(step)])
            uniform = numbers.random(BLOCK).astype(np.float32)
            said = denoised(module, past, canvas, len(text), expected, heat, uniform)
            best = said.top_ids[0, :, 0].numpy()
            entropy = said.tempered_entropy[0].double().numpy()
            noise = random_tokens(numbers.random(BLOCK), 64)
            if sampler.settled(best, entropy):
                break
            order = np.argsort(entropy, kind="stable")
            kept = np.cumsum(entropy[order]) - entropy[order]
            kept = order[kept <= max(sampler.option("entropy_bound"), 1e-12)]
            canvas = noise
            canvas[kept] = said.sampled_id[0].numpy()[kept]
            expected = said.next_self_conditioning
        text += best.tolist()
    end = len(request.prompt) + request.max_new_tokens
    return tuple(text[len(request.prompt) : end])


@torch.inference_mode()
def stored(module, text):
    """Return keys and values of a whole text, of which a layer sees as much as it should."""
    ids, count = torch.tensor([text]), len(text)
    place = torch.arange(count)
    behind = place[:, None] - place
    causal = (behind >= 0)[None, None]
    trail = ((behind >= 0) & (behind <= CONTEXT))[None, None]
    nothing = [
        (torch.zeros(1, heads, 0, size),) * 2
        for heads, size in map(module.denoiser.config.cache_shape, module.denoiser.config.kinds)
    ]
    _, present = module.denoiser(
        ids,
        place[None],
        causal,
        nothing,
        sliding_attention_mask=trail,
        self_conditioning=torch.zeros(1, count, 32),
        denoising=torch.tensor([False]),
    )
    return [
        tuple(part[:, :, -CONTEXT:] if kind == "sliding" else part for part in pair)
        for kind, pair in zip(module.denoiser.config.kinds, present, strict=True)
    ]


@torch.inference_mode()
def denoised(module, past, canvas, start, expected, heat, uniform):
    """Return what the head says about a canvas that sees all of ``past`` and itself."""
    everything = (torch.ones(1, 1, BLOCK, n + BLOCK, dtype=torch.bool) for n in lengths(past))
    trail, whole = (next(everything), list(everything)[-1])
    said, _ = module(
        torch.from_numpy(canvas)[None],
        torch.arange(start, start + BLOCK)[None],
        whole,
        past,
        torch.arange(BLOCK)[None],
        heat,
        torch.from_numpy(uniform)[None],
        sliding_attention_mask=trail,
        self_conditioning=expected,
        denoising=torch.tensor([True]),
    )
    return said


def lengths(past):
    return [key.shape[2] for key, _ in past]


def test_a_seed_is_a_text_and_another_seed_another(engine):
    texts = []
    for seed in range(4):
        options = {"prompt": [1, 2, 3], "max_new_tokens": 12, "seed": seed, "ignore_eos": True}
        first, again = (run(engine, [options]) for _ in range(2))
        assert first == again
        texts.append(first[0].tokens)
    assert len(set(texts)) == 4


@FEW
@given(ASKED)
def test_events_tell_a_consistent_story(engine, options):
    events = list(Generator(engine, None).stream(**options))
    assert isinstance(events[-1], Finished)
    result = events[-1].result
    assert replace(result, seconds=0.0) == run(engine, [options])[0]
    committed = [token for e in events if isinstance(e, Committed) for token in e.tokens]
    assert tuple(committed) == result.tokens
    for event in (event for event in events if isinstance(event, Denoised)):
        own = event.masked[event.start : event.end]
        assert own.all() or not own.any()  # a canvas is final as a whole
        assert not event.masked[: event.start].any()
        assert event.masked[event.end :].all()
        assert ((event.confidence >= 0) & (event.confidence < 1.001)).all()


def test_random_models_say_different_things(engine):
    """Without variety the tests above would show nothing."""
    options = [
        {"prompt": prompt, "max_new_tokens": 12, "ignore_eos": True, "sampler": sampler}
        for prompt in ([1, 2, 3], [4, 5], [6] * 9)
        for sampler in (SamplerConfig("renoise"), SamplerConfig("renoise", steps=2))
    ]
    results = run(engine, options)
    assert len({result.tokens for result in results}) == len(options)
    assert all(len(set(result.tokens)) > 3 for result in results)
