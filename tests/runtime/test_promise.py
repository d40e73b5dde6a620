"""The promise: tokens depend on the model and the request, on nothing else.

Not on the other rows of the batch, not on padding, not on how a prompt was fed, not on whether
keys and values came from a cache; and equal seeds give equal text. Shown on random models of every
kind the families are of, with every sampler and cache that is legal there; the examples are the
same on every run.
"""

from dataclasses import replace
from typing import Any

import oracle
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime import legal, samplers
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.events import Committed, Denoised, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.infill import Hole
from dlmc_runtime.manifest import Profile
from dlmc_runtime.samplers.config import SamplerConfig

MASK, EOS = 63, 60
EDITS = (35, 54)  # the random models predict these often
# Of each kind of family one: how its sequences fall into blocks, and what its logits predict.
KINDS: dict[str, dict[str, Any]] = {
    "full": {"regime": "full"},  # LLaDA, A2D
    "full_shift": {"regime": "full", "shift": 1},  # Dream, CoDA
    "full_guided": {"regime": "full", "guided": True},
    "block": {"regime": "block"},  # SDAR
    "block_cut": {"regime": "block", "last_block": "cut"},  # Stable-DiffCoder
    "block_answer": {"regime": "block", "aligned_to": "answer", "last_block": "cut"},  # BD3LM
    "block_edge": {"regime": "block", "aligned_to": "answer", "shift": 1},
    "block_seeded": {"regime": "block", "shift": 1, "seeded": True},  # Fast-dLLM v2
    "block_guided": {"regime": "block", "guided": True},
    "block_edits": {"regime": "block", "edits": EDITS},  # LLaDA2.2
    "context": {  # Nemotron
        "regime": "context",
        "aligned_to": "answer",
        "last_block": "cut",
        "seeded": True,
    },
}
FEW = settings(max_examples=12, derandomize=True, deadline=None)
MORE = settings(max_examples=40, derandomize=True, deadline=None)

# A canvas of masks alone looks the same from everywhere: its predictions tie.
PROMPTS = st.lists(st.integers(0, 59) | st.just(MASK), min_size=1, max_size=13).filter(
    lambda prompt: set(prompt) != {MASK}
)
SHARE = st.none() | st.sampled_from([0.3, 0.6, 0.9])
OPTIONS = {
    "steps": st.none() | st.integers(1, 6),
    "threshold": SHARE,
    "factor": st.none() | st.sampled_from([0.5, 1.5]),
    "schedule": st.sampled_from([None, "uniform", "linear", "cosine", "dream", "rnd1"]),
    "eps": st.sampled_from([1e-3, 0.2]),
    "alg_temp": st.sampled_from([None, 0.0, 0.3]),
    "defer_ids": st.sampled_from([(), (EOS, 7)]),
    "uncounted_ids": st.sampled_from([(), (EOS, 7)]),
    "most": st.none() | st.integers(1, 3),
    "gamma": st.sampled_from([None, 0.5, 3.0]),
    "kl_threshold": st.sampled_from([None, 0.5]),
    "low_threshold": SHARE,
    "min_threshold": SHARE,
    "revoke_threshold": SHARE,
    "eta": st.sampled_from([None, 0.3, 1.0]),
    "order": st.sampled_from([None, "entropy", "confidence"]),
    "edit_threshold": st.sampled_from([None, 0.0, 0.3]),
    "max_post_steps": st.sampled_from([None, 0, 1, 4]),
    "max_steps": st.sampled_from([None, 1, 5]),
    "least": st.sampled_from([None, 2, 9]),
}
COMMON = {
    "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    "top_k": st.sampled_from([0, 0, 3]),
    "top_p": st.sampled_from([1.0, 1.0, 0.8]),
}


@st.composite
def configs(draw, kind, names=None):
    """Samplers that a kind of model can use."""
    facts = KINDS[kind]
    regime = facts["regime"]
    name = draw(st.sampled_from(names or legal.samplers_for(regime, engine_manifest(kind).tokens)))
    options = {k: draw(OPTIONS[k]) for k in sorted(samplers.find(name).heeds)}
    if name not in ("credit", "levenshtein"):
        options |= {k: draw(v) for k, v in COMMON.items()}
    if regime == "full":
        options["block_length"] = draw(st.none() | st.integers(1, 7))
        options["cache"] = draw(st.sampled_from([None, "none", "prefix", "dual"]))
    if regime == "block" and not samplers.find(name).rewrites:
        options["sub_block_length"] = draw(st.sampled_from([None, None, 2, 3]))
        options["cache"] = draw(st.sampled_from([None, "dual"]))
    if facts.get("guided"):
        options["guidance"] = draw(st.sampled_from([0.0, 0.5, 2.0]))
        options["guidance_keep"] = draw(st.sampled_from([(), (1, 2, 3)]))
    try:
        config = SamplerConfig(name, **options)
        legal.check(config, engine_manifest(kind))
    except DlmcError:
        assume(False)
    return config


@st.composite
def asked(draw, kind, names=None):
    """Options of `Generator.request`."""
    return {
        "prompt": draw(PROMPTS),
        "max_new_tokens": draw(st.integers(1, 14)),
        "sampler": draw(configs(kind, names)),
        "seed": draw(st.integers(0, 3)),
        "ignore_eos": draw(st.booleans()),
        "early_exit": draw(st.booleans()),
        "keep_cache": draw(st.booleans()),
    }


_MADE: dict[str, Any] = {}


@pytest.fixture(autouse=True, scope="module")
def _engines(torch_engine):
    """Make an engine of every kind, for strategies to look at."""
    for kind, facts in KINDS.items():
        attention = {"block_length": 4, **facts}
        shift, guided = attention.pop("shift", 0), attention.pop("guided", False)
        tokens = {"mask": MASK, "stop": (EOS,), "pad": 61, "suppressed": (MASK,)}
        edits = dict(zip(("delete", "split"), attention.pop("edits", ()), strict=False))
        _MADE[kind] = torch_engine(
            facts["regime"],
            profiles=profiles(facts["regime"], 8, 34, 48, 16),
            attention=attention,
            shift=shift,
            guided=guided,
            tokens=tokens | edits,
        )


def engine_manifest(kind):
    return _MADE[kind].manifest


EVERY = st.sampled_from(sorted(KINDS))
CASES = EVERY.flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(asked(kind), min_size=2, max_size=4))
)
ONE = EVERY.flatmap(lambda kind: st.tuples(st.just(kind), asked(kind)))


def run(engine, requests):
    """Return what matters of the results: everything but the time."""
    generator = Generator(engine, None)
    results = generator.run([generator.request(**options) for options in requests])
    assert not [r for r in results if MASK in r.tokens]
    return [replace(result, seconds=0.0) for result in results]


def profiles(regime, batch, block, cache, prefill):
    """Return the profiles of an engine; ``block`` positions to denoise, all with head rows."""
    if regime == "full":
        shapes = [(block, 0), (block, block), (8, block)]
    else:
        shapes = [(min(block, 8), cache), (prefill, cache)]
    return tuple(
        Profile(batch=batch, block=t, cache=c, rows=min(t, 16)) for t, c in dict.fromkeys(shapes)
    )


def reshaped(kind, batch, block, cache, prefill):
    engine = _MADE[kind]
    shapes = profiles(KINDS[kind]["regime"], batch, block, cache, prefill)
    return TorchEngine(engine.module, engine.manifest, shapes)


@MORE
@given(CASES)
def test_a_batch_gives_the_tokens_of_its_rows_alone(case):
    kind, requests = case
    alone = [run(_MADE[kind], [options])[0] for options in requests]
    assert run(_MADE[kind], requests) == alone


@MORE
@given(ONE, st.integers(2, 5), st.integers(34, 50), st.integers(32, 60), st.integers(4, 7))
def test_padding_changes_nothing(case, batch, block, cache, prefill):
    kind, options = case
    tight = reshaped(kind, 2, 34, 32, 4)
    assert run(reshaped(kind, batch, block, cache, prefill), [options]) == run(tight, [options])


@FEW
@given(
    st.sampled_from([k for k in KINDS if KINDS[k]["regime"] != "full"]).flatmap(
        lambda k: st.tuples(st.just(k), asked(k))
    )
)
def test_the_size_of_prefill_chunks_changes_no_token(case):
    kind, options = case
    tokens, forwards = [], []
    for prefill in (4, 7, 8, 16):
        result = run(reshaped(kind, 2, 4, 32, prefill), [options])[0]
        tokens.append(result.tokens)
        forwards.append(result.forwards)
    assert tokens == tokens[:1] * 4
    assert forwards == sorted(forwards, reverse=True)


@pytest.mark.parametrize("kind", [k for k in sorted(KINDS) if KINDS[k]["regime"] != "full"])
def test_a_prompt_in_many_chunks_draws_no_more_than_one_in_few(kind):
    sampler = SamplerConfig(legal.samplers_of(KINDS[kind]["regime"])[0], temperature=1.5)
    for seed in range(4):
        asked = {"prompt": [*range(1, 22)], "max_new_tokens": 9, "sampler": sampler, "seed": seed}
        tokens = [run(reshaped(kind, 2, 4, 40, chunk), [asked])[0].tokens for chunk in (4, 16)]
        assert tokens[0] == tokens[1]


@MORE
@given(ONE)
def test_going_on_to_the_end_of_a_block_changes_no_token(case):
    kind, options = case
    ways = [{}, {"early_exit": False}, {"early_exit": False, "keep_cache": True}]
    options = {**options, "early_exit": True, "keep_cache": False}
    found = [run(_MADE[kind], [{**options, **way}])[0] for way in ways]
    assert len({result.tokens for result in found}) == 1
    forwards = [result.forwards for result in found]
    assert forwards == sorted(forwards)


EXACT = [
    name for name in samplers.SAMPLERS if legal.regimes_of(name) == ("full", "block", "context")
]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(EVERY.flatmap(lambda kind: st.tuples(st.just(kind), asked(kind, EXACT))))
def test_the_loop_equals_one_that_recomputes_everything(case):
    kind, options = case
    # The cache of sub-blocks is checked against recorded runs of the reference.
    assume(KINDS[kind]["regime"] == "full" or options["sampler"].cache is None)
    engine = _MADE[kind]
    generator = Generator(engine, None)
    request = generator.request(**{**options, "ignore_eos": True})
    assert generator.run([request])[0].tokens == oracle.answer(engine, request)


@MORE
@given(asked("block_edits", ["levenshtein"]))
def test_a_block_that_grows_and_shrinks_equals_one_that_is_recomputed(options):
    engine = _MADE["block_edits"]
    generator = Generator(engine, None)
    request = generator.request(**{**options, "ignore_eos": True})
    result = generator.run([request])[0]
    assert result.tokens == oracle.answer(engine, request)
    assert not set(result.tokens) & set(EDITS)


CAUSAL = st.sampled_from(["autoregressive", "linear_speculation"])


@MORE
@given(asked("context", ["autoregressive"]))
def test_the_causal_pass_gives_one_token_after_the_other(options):
    engine = _MADE["context"]
    generator = Generator(engine, None)
    request = generator.request(**{**options, "ignore_eos": True})
    assert generator.run([request])[0].tokens == oracle.greedy(engine, request)


@MORE
@given(asked("context", ["linear_speculation"]), st.none() | st.integers(1, 4))
def test_speculation_gives_what_the_causal_pass_gives(options, block_length):
    draft = replace(options["sampler"], block_length=block_length, top_k=0, top_p=1.0)
    alone = SamplerConfig("autoregressive")
    drafted, plain = (
        run(_MADE["context"], [{**options, "sampler": config}])[0] for config in (draft, alone)
    )
    assert drafted.tokens == plain.tokens
    assert drafted.finish_reason == plain.finish_reason
    if block_length == 1:
        assert drafted.forwards == plain.forwards


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_text_and_another_seed_another(kind):
    hot = SamplerConfig("low_confidence", temperature=1.5)
    texts = []
    for seed in range(4):
        options = {"prompt": [1, 2, 3], "max_new_tokens": 12, "sampler": hot, "seed": seed}
        first, again = (run(_MADE[kind], [{**options, "ignore_eos": True}]) for _ in range(2))
        assert first == again
        texts.append(first[0].tokens)
    assert len(set(texts)) == 4


@MORE
@given(ONE)
def test_events_tell_a_consistent_story(case):
    kind, options = case
    generator = Generator(_MADE[kind], None)
    events = list(generator.stream(**options))
    assert isinstance(events[-1], Finished)
    result = events[-1].result
    assert replace(result, seconds=0.0) == run(_MADE[kind], [options])[0]
    assert [type(event) for event in events].count(Finished) == 1
    committed = [token for e in events if isinstance(e, Committed) for token in e.tokens]
    assert tuple(committed) == result.tokens
    revises = samplers.find(options["sampler"].name).revises
    speculates = "context" not in set(legal.regimes_of(options["sampler"].name)) - {"full", "block"}
    left = None
    for event in (event for event in events if isinstance(event, Denoised)):
        assert ((event.canvas == MASK) == event.masked).all()
        assert len(event.canvas) >= options["max_new_tokens"]
        assert event.confidence.shape == (event.end - event.start,)
        assert ((event.confidence >= 0) & (event.confidence < 1.001)).all()
        outside = event.masked.copy()
        outside[max(event.start, 0) : event.end] = False
        assert not outside[: max(event.start, 0)].any()  # earlier blocks are full
        if not revises and speculates:
            assert left is None or event.masked.sum() < left
        left = event.masked.sum()
        assert event.forward <= result.forwards


FULL = st.sampled_from([kind for kind in sorted(KINDS) if KINDS[kind]["regime"] == "full"])
PARTS = st.lists(st.lists(st.integers(0, 59), min_size=1, max_size=5), min_size=2, max_size=3)


@st.composite
def templates(draw, kind):
    """Options of `Generator.infill_request`: holes between and behind pieces of text."""
    template = []
    for part in draw(PARTS):
        template += [part, Hole(draw(st.integers(1, 5)))]
    if draw(st.booleans()):
        template.append([7])
    sampler = draw(configs(kind, [n for n in legal.samplers_of("full") if n != "wino"]))
    return {"template": template, "sampler": sampler, "seed": draw(st.integers(0, 3))}


@MORE
@given(
    FULL.flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(templates(kind), min_size=1, max_size=3))
    )
)
def test_templates_are_filled_alike_alone_and_together(case):
    kind, requests = case
    generator = Generator(_MADE[kind], None)
    made = [generator.infill_request(**options) for options in requests]
    alone = [replace(generator.run([one])[0], seconds=0.0) for one in made]
    assert [replace(one, seconds=0.0) for one in generator.run(made)] == alone
    for options, result in zip(requests, alone, strict=True):
        lengths = [part.length for part in options["template"] if isinstance(part, Hole)]
        assert len(result.tokens) == sum(lengths)
        assert MASK not in result.tokens
        assert result.finish_reason in ("stop", "steps")


def test_random_models_say_different_things():
    """Without variety the tests above would show nothing."""
    for engine in _MADE.values():
        prompts = [[1, 2, 3], [4, 5], [6] * 9]
        options = [{"prompt": p, "max_new_tokens": 12, "ignore_eos": True} for p in prompts]
        results = run(engine, options)
        assert len({result.tokens for result in results}) == len(prompts)
        assert all(len(set(result.tokens)) > 2 for result in results)
        assert len({token for result in results for token in result.tokens}) > 9
