"""The promise: tokens depend on the model and the request, on nothing else.

Not on the other rows of the batch, not on padding, not on how a prompt was fed, not on whether
keys and values came from a cache; and equal seeds give equal text. Shown on random models, whose
every decision has some margin; the examples are the same on every run.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime import samplers
from dlmc_runtime.events import Committed, Denoised, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.samplers.base import BlockState, Prediction
from dlmc_runtime.samplers.config import SamplerConfig

MASK, EOS = 63, 60
REGIMES = ("full", "block", "context")
FEW = settings(max_examples=10, derandomize=True, deadline=None)

# A canvas of masks alone looks the same from everywhere: its predictions tie.
PROMPTS = st.lists(st.integers(0, 59) | st.just(MASK), min_size=1, max_size=13).filter(
    lambda prompt: set(prompt) != {MASK}
)
DRAWS = {
    "steps": st.none() | st.integers(1, 6),
    "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    "top_k": st.sampled_from([0, 0, 3]),
    "top_p": st.sampled_from([1.0, 1.0, 0.8]),
}
FULL = st.builds(
    SamplerConfig,
    name=st.sampled_from(["low_confidence", "random"]),
    threshold=st.none() | st.sampled_from([0.3, 0.9]),
    block_length=st.none() | st.integers(1, 7),
    **DRAWS,
) | st.builds(SamplerConfig, factor=st.sampled_from([0.5, 1.5]))
BLOCK = st.builds(
    SamplerConfig,
    name=st.sampled_from(["low_confidence_static", "low_confidence_dynamic", "sequential"]),
    threshold=st.none() | st.sampled_from([0.3, 0.9]),
    **DRAWS,
)


@st.composite
def asked(draw, regime):
    """Options of `Generator.request`."""
    return {
        "prompt": draw(PROMPTS),
        "max_new_tokens": draw(st.integers(1, 14)),
        "sampler": draw(FULL if regime == "full" else BLOCK),
        "seed": draw(st.integers(0, 3)),
        "ignore_eos": draw(st.booleans()),
        "keep_cache": draw(st.booleans()),
    }


CASES = st.sampled_from(REGIMES).flatmap(
    lambda regime: st.tuples(st.just(regime), st.lists(asked(regime), min_size=2, max_size=5))
)
ONE = st.sampled_from(REGIMES).flatmap(lambda r: st.tuples(st.just(r), asked(r)))


def run(engine, requests):
    """Return what matters of the results: everything but the time."""
    generator = Generator(engine, None)
    results = generator.run([generator.request(**options) for options in requests])
    assert not [r for r in results if MASK in r.tokens]
    return [replace(result, seconds=0.0) for result in results]


def profiles(regime, batch, block, cache, prefill):
    """Return the profiles of an engine; ``block`` positions to denoise, all with head rows."""
    if regime == "full":
        return (Profile(batch=batch, block=block, cache=0, rows=16),)
    return (
        Profile(batch=batch, block=block, cache=cache, rows=block),
        Profile(batch=batch, block=prefill, cache=cache, rows=1),
    )


def reshaped(engine, shapes):
    return TorchEngine(engine.module, engine.manifest, shapes)


@FEW
@given(CASES)
def test_a_batch_gives_the_tokens_of_its_rows_alone(torch_engine, case):
    regime, requests = case
    engine = torch_engine(regime)
    alone = [run(engine, [options])[0] for options in requests]
    assert run(engine, requests) == alone


@FEW
@given(ONE, st.integers(1, 5), st.integers(4, 7), st.integers(28, 60), st.integers(4, 7))
def test_padding_changes_nothing(torch_engine, case, batch, block, cache, prefill):
    regime, options = case
    engine = torch_engine(regime)
    tight = profiles(regime, 1, 27 if regime == "full" else 4, 28, 4)
    wide = profiles(regime, batch, cache if regime == "full" else block, cache, prefill)
    assert run(reshaped(engine, wide), [options]) == run(reshaped(engine, tight), [options])


@FEW
@given(st.sampled_from(["block", "context"]).flatmap(lambda r: st.tuples(st.just(r), asked(r))))
def test_the_size_of_prefill_chunks_changes_no_token(torch_engine, case):
    regime, options = case
    engine = torch_engine(regime)
    tokens, forwards = [], []
    for prefill in (4, 7, 8, 16):
        shapes = profiles(regime, 1, 4, 32, prefill)
        result = run(reshaped(engine, shapes), [options])[0]
        tokens.append(result.tokens)
        forwards.append(result.forwards)
    assert tokens == tokens[:1] * 4
    assert forwards == sorted(forwards, reverse=True)


@FEW
@given(ONE)
def test_keeping_the_cache_changes_no_token(torch_engine, case):
    regime, options = case
    engine = torch_engine(regime)
    short, long = (run(engine, [{**options, "keep_cache": keep}])[0] for keep in (False, True))
    assert (long.tokens, long.finish_reason) == (short.tokens, short.finish_reason)
    assert long.forwards >= short.forwards


@FEW
@given(ONE)
def test_the_loop_equals_one_that_recomputes_everything(torch_engine, case):
    regime, options = case
    engine = torch_engine(regime)
    generator = Generator(engine, None)
    request = generator.request(**{**options, "ignore_eos": True})
    assert generator.run([request])[0].tokens == recomputed(engine, request)


def recomputed(engine, request):
    """Generate without cache, profiles, `Row` or `masks`: one forward over all there is so far."""
    regime, prompt = engine.manifest.attention.regime, len(request.prompt)
    block = request.sampler.block_length or engine.manifest.attention.block_length
    wanted = prompt + request.max_new_tokens
    length = wanted if regime == "full" else -(-wanted // block) * block
    canvas = np.array([*request.prompt, *[MASK] * (length - prompt)])
    masked = np.arange(length) >= prompt
    sampler, rng = samplers.build(request.sampler), np.random.default_rng(request.seed)
    start = prompt if regime == "full" else prompt // block * block
    while start < wanted:
        end, step = min(start + block, length), 0
        masks = int(masked[start:end].sum())
        while masked[start:end].any():
            seen = length if regime == "full" else end
            uniform = rng.random(end - start) if request.sampler.temperature else None
            prediction = predicted(engine, request, canvas[:seen], start, end, uniform)
            noise = rng.random(end - start) if sampler.noisy else None
            state = BlockState(masked[start:end].copy(), step, masks)
            chosen = start + np.flatnonzero(sampler.select(replace(prediction, noise=noise), state))
            canvas[chosen] = prediction.tokens[chosen - start]
            masked[chosen] = False
            step += 1
        start = end
    return tuple(canvas[prompt:wanted].tolist())


def predicted(engine, request, ids, start, end, uniform):
    """Run the model over ``ids`` and draw from its full distribution, in float64."""
    rule = {
        "full": lambda query, key: True,
        "block": lambda query, key: key // 4 <= query // 4,
        "context": lambda query, key: query >= start or key <= query,
    }[engine.manifest.attention.regime]
    length, config = len(ids), request.sampler
    mask = np.array([[rule(q, k) for k in range(length)] for q in range(length)])
    model = engine.manifest.model
    empty = np.zeros((1, model.num_key_value_heads, 0, model.head_dim), np.float32)
    past = {
        f"past_key_values.{layer}.{part}": empty
        for layer in range(model.num_hidden_layers)
        for part in ("key", "value")
    }
    temperature = np.array([config.temperature], np.float32)
    drawn = np.zeros(end - start) if uniform is None else uniform
    out = engine.run(
        {
            "input_ids": ids[None],
            "position_ids": np.arange(length)[None],
            "attention_mask": mask[None, None],
            **past,
            "head_rows": np.arange(start, end)[None],
            "temperature": temperature,
            "uniform": drawn[None].astype(np.float32),
        }
    )
    return chosen_token(out, config, drawn, tempered=samplers.build(config).tempered)


def chosen_token(out, config, uniform, *, tempered):
    """Return token and confidence of each row of a head's answer."""
    logits = out["top_logits"][0].astype(np.float64)
    if not (config.top_k or config.top_p < 1):
        token, logit = out["sampled_id"][0], out["sampled_logit"][0].astype(np.float64)
        if tempered and config.temperature:
            return Prediction(
                token, np.exp(logit / config.temperature - out["tempered_logsumexp"][0])
            )
        return Prediction(token, np.exp(logit - out["logsumexp"][0]))
    tokens, confidence = [], []
    for row, number in enumerate(uniform):
        scaled = logits[row] / (config.temperature or 1.0)
        base = out["tempered_logsumexp"][0, row]
        weights = np.exp(scaled - base)
        if config.top_k:
            weights = weights[: config.top_k] / weights[: config.top_k].sum()
        kept, total = [], 0.0
        for weight in weights:
            if total < config.top_p:
                kept.append(weight)
            total += weight
        share = np.array(kept) / sum(kept)
        pick = 0
        while config.temperature and share[: pick + 1].sum() <= number:
            pick += 1
        tokens.append(int(out["top_ids"][0, row, pick]))
        plain = np.exp(logits[row, pick] - out["logsumexp"][0, row])
        confidence.append(share[pick] if tempered else plain)
    return Prediction(np.array(tokens), np.array(confidence))


@pytest.mark.parametrize("regime", REGIMES)
def test_a_seed_is_a_text_and_another_seed_another(torch_engine, regime):
    engine = torch_engine(regime)
    hot = SamplerConfig(
        name="random" if regime == "full" else "low_confidence_dynamic", temperature=1.5
    )
    texts = []
    for seed in range(4):
        options = {"prompt": [1, 2, 3], "max_new_tokens": 12, "sampler": hot, "seed": seed}
        first, again = (run(engine, [{**options, "ignore_eos": True}]) for _ in range(2))
        assert first == again
        texts.append(first[0].tokens)
    assert len(set(texts)) == 4


@FEW
@given(ONE)
def test_events_tell_a_consistent_story(torch_engine, case):
    regime, options = case
    engine = torch_engine(regime)
    generator = Generator(engine, None)
    events = list(generator.stream(**options))
    assert isinstance(events[-1], Finished)
    result = events[-1].result
    assert replace(result, seconds=0.0) == run(engine, [options])[0]
    assert [type(event) for event in events].count(Finished) == 1
    committed = [token for e in events if isinstance(e, Committed) for token in e.tokens]
    assert tuple(committed) == result.tokens
    left = None
    for event in (event for event in events if isinstance(event, Denoised)):
        assert ((event.canvas == MASK) == event.masked).all()
        assert len(event.canvas) >= options["max_new_tokens"]
        assert event.confidence.shape == (event.end - event.start,)
        assert ((event.confidence > 0) & (event.confidence < 1.001)).all()
        outside = event.masked.copy()
        outside[max(event.start, 0) : event.end] = False
        assert not outside[: max(event.start, 0)].any()  # earlier blocks are full
        assert outside[event.end :].all()  # later ones untouched
        assert left is None or event.masked.sum() < left
        left = event.masked.sum()
        assert event.forward <= result.forwards


def test_random_models_say_different_things(torch_engine):
    """Without variety the tests above would show nothing."""
    for regime in REGIMES:
        engine = torch_engine(regime)
        prompts = [[1, 2, 3], [4, 5], [6] * 9]
        options = [{"prompt": p, "max_new_tokens": 12, "ignore_eos": True} for p in prompts]
        results = run(engine, options)
        assert len({result.tokens for result in results}) == len(prompts)
        assert all(len(set(result.tokens)) > 2 for result in results)
        assert len({token for result in results for token in result.tokens}) > 9
