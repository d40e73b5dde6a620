"""Whatever a model is, and however it is sampled, its text meets the constraint."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dlmc_runtime import legal, samplers
from dlmc_runtime.constraints import Compiler
from dlmc_runtime.constraints.automaton import Automaton
from dlmc_runtime.errors import DlmcError, RequestError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.samplers.config import SamplerConfig

MASK, EOS = 63, 60
KINDS: dict[str, dict[str, Any]] = {
    "full": {"regime": "full"},
    "full_shift": {"regime": "full", "shift": 1},
    "block": {"regime": "block"},
    "block_cut": {"regime": "block", "last_block": "cut"},
    "block_edge": {"regime": "block", "aligned_to": "answer", "shift": 1},
    "block_seeded": {"regime": "block", "shift": 1, "seeded": True},
    "context": {"regime": "context", "aligned_to": "answer", "last_block": "cut", "seeded": True},
}
PATTERNS = ("[a-f]{2,4}", "(yes|no)( [0-9]{2})*", "é€🙂?", "[^0-9]*!", "-?[0-9]{1,3}(,[0-9]{3})*")
PROMPTS = ([5, 9, 2], [1], [40, 30, 20, 10, 3, 3, 7])
UNBOUND = ("token_editing", "levenshtein", "autoregressive", "linear_speculation")


def profiles(regime, batch=4):
    shapes = [(34, 0), (34, 34), (8, 34)] if regime == "full" else [(8, 48), (16, 48)]
    return tuple(Profile(batch=batch, block=t, cache=c, rows=min(t, 16)) for t, c in shapes)


@pytest.fixture(scope="module")
def generators(torch_engine, noise_engine, codec):
    made = {}
    for kind, facts in KINDS.items():
        attention = {"block_length": 4, **facts}
        shift = attention.pop("shift", 0)
        engine = torch_engine(
            facts["regime"], profiles=profiles(facts["regime"]), attention=attention, shift=shift
        )
        made[kind] = Generator(engine, codec)
    # One shape: a canvas fed back to itself for 48 steps makes much of how another shape rounds.
    made["noise"] = Generator(noise_engine((Profile(batch=4, block=4, cache=48, rows=4),)), codec)
    return made


@pytest.fixture(scope="module")
def constraints(codec, generators):
    """The constraints of `PATTERNS`, for models with a mask and without one."""
    found: dict[tuple[str, bool], Automaton] = {}
    for masked, kind in ((True, "block"), (False, "noise")):
        compiler = Compiler(codec, generators[kind].manifest)
        found |= {(pattern, masked): compiler.regex(pattern) for pattern in PATTERNS}
    return found


COMMON = {
    "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    "top_k": st.sampled_from([0, 0, 3]),
    "top_p": st.sampled_from([1.0, 1.0, 0.8]),
}
OPTIONS = {
    "steps": st.none() | st.integers(1, 6),
    "threshold": st.sampled_from([None, 0.3, 0.9]),
    "eta": st.sampled_from([None, 0.5]),
    "alg_temp": st.sampled_from([None, 0.3]),
    "revoke_threshold": st.sampled_from([None, 0.6]),
}


@st.composite
def requests(draw, manifest):
    regime, tokens = manifest.attention.regime, manifest.tokens
    name = draw(st.sampled_from(legal.samplers_for(regime, tokens)))
    assume(name not in UNBOUND)
    heeds = samplers.find(name).heeds
    options = {key: draw(value) for key, value in OPTIONS.items() if key in heeds}
    if name not in ("credit", "renoise"):
        options |= {key: draw(value) for key, value in COMMON.items()}
    if regime == "full":
        options["block_length"] = draw(st.sampled_from([None, 3, 5]))
        options["cache"] = draw(st.sampled_from([None, "prefix", "dual"]))
    if regime == "block":
        options["sub_block_length"] = draw(st.sampled_from([None, 2, 3]))
        options["cache"] = draw(st.sampled_from([None, "dual"]))
    config = SamplerConfig(name, **options)
    try:
        legal.check(config, manifest, constrained=True)
    except DlmcError:
        assume(False)
    return {
        "prompt": draw(st.sampled_from(PROMPTS)),
        "sampler": config,
        "seed": draw(st.integers(0, 3)),
        "early_exit": draw(st.booleans()),
        "keep_cache": draw(st.booleans()),
    }


@pytest.mark.slow
@settings(max_examples=60)
@given(
    data=st.data(),
    kind=st.sampled_from([*KINDS, "noise"]),
    pattern=st.sampled_from(PATTERNS),
    spare=st.integers(0, 9),
)
def test_every_text_meets_the_constraint(generators, constraints, data, kind, pattern, spare):
    generator = generators[kind]
    constraint = constraints[pattern, kind != "noise"]
    asked = data.draw(requests(generator.manifest))
    length = constraint.shortest + spare
    result = generator.generate(**asked, constraint=constraint, max_new_tokens=length)
    assert re.fullmatch(pattern, result.text), result.text
    assert result.finish_reason in ("stop", "length", "steps")
    if result.finish_reason == "length":
        assert not constraint.completes(np.array(result.tokens, np.int64))
    assert len(result.tokens) <= length


@pytest.mark.slow
@settings(max_examples=10)
@given(data=st.data(), kind=st.sampled_from([*KINDS, "noise"]))
def test_rows_of_a_batch_are_what_they_are_alone(generators, constraints, data, kind):
    generator = generators[kind]
    asked = []
    for pattern in data.draw(st.lists(st.sampled_from([None, *PATTERNS]), min_size=2, max_size=4)):
        constraint = constraints.get((pattern, kind != "noise"))
        options = data.draw(requests(generator.manifest))
        asked.append(generator.request(**options, constraint=constraint, max_new_tokens=9))
    alone = [generator.run([request])[0] for request in asked]
    together = generator.run(asked)
    for one, other in zip(alone, together, strict=True):
        assert replace(one, seconds=0.0) == replace(other, seconds=0.0)


def test_a_model_that_likes_the_constraint_is_not_changed(scripted, manifest, codec):
    made = manifest("block", 4, (Profile(batch=1, block=4, cache=48, rows=4),))
    script = [*codec.encode("ab01yes 42"), EOS] + [EOS] * 40
    generator = Generator(scripted(made, script), codec)
    free = generator.generate("ab01")
    constraint = generator.constraints.regex("(yes|no)( [0-9]{2})*")
    kept = generator.generate("ab01", constraint=constraint)
    assert free.text == kept.text == "yes 42"
    assert kept.forwards <= free.forwards


@pytest.mark.parametrize("name", UNBOUND)
def test_samplers_that_fix_tokens_by_themselves_are_refused(generators, constraints, name):
    kind = "context" if name in ("autoregressive", "linear_speculation") else "block"
    constraint = constraints[PATTERNS[0], True]
    manifest = generators[kind].manifest
    if name == "levenshtein":
        tokens = manifest.tokens.model_copy(update={"delete": 35, "split": 54})
        manifest = manifest.model_copy(update={"tokens": tokens})
    legal.check(SamplerConfig(name), manifest)
    with pytest.raises(RequestError, match="which a constraint rules out") as caught:
        legal.check(SamplerConfig(name), manifest, constrained=True)
    assert name not in caught.value.hint
    if name != "levenshtein":
        with pytest.raises(RequestError, match="which a constraint rules out"):
            generators[kind].request([1], constraint=constraint, sampler=SamplerConfig(name))


def test_a_constraint_needs_a_tokenizer(torch_engine):
    with pytest.raises(RequestError, match="no tokenizer"):
        _ = Generator(torch_engine(), None).constraints
