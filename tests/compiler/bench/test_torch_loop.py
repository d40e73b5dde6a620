from dataclasses import replace

import pytest
import torch

from dlmc.bench.generation import EngineContestant, race
from dlmc.bench.torch_loop import TorchContestant, TorchLoop, check
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import UsageError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import TensorSpec
from dlmc_runtime.samplers.config import SamplerConfig

SAMPLERS = {
    "tiny-llada": (
        SamplerConfig(name="low_confidence", steps=4, block_length=16),
        SamplerConfig(name="low_confidence", steps=3, block_length=8),
        SamplerConfig(name="low_confidence", threshold=0.9, block_length=16),
    ),
    "tiny-sdar": (
        SamplerConfig(name="low_confidence_static", steps=2),
        SamplerConfig(name="low_confidence_dynamic", threshold=0.9),
        SamplerConfig(name="sequential", steps=4),
    ),
}
CASES = [(name, sampler) for name, samplers in SAMPLERS.items() for sampler in samplers]
QUESTIONS = ("458+386=?", "sort 7 3 9 1 4 4")


@pytest.fixture(scope="session")
def loops(tiny):
    return {name: TorchLoop.load(Bundle.open(root), "float32") for name, root in tiny.items()}


@pytest.mark.parametrize(
    ("name", "sampler"), CASES, ids=lambda value: getattr(value, "name", value)
)
def test_tokens_and_forwards_are_those_of_the_runtime(name, sampler, tiny, loops):
    with Generator.load(tiny[name]) as generator:
        assert generator.text is not None
        ours = EngineContestant("engine", generator)
        theirs = TorchContestant("torch", loops[name])
        for question in QUESTIONS:
            prompt = generator.text.chat([{"role": "user", "content": question}])
            request = generator.request(prompt, sampler=sampler, max_new_tokens=32)
            engine, reference = race([ours, theirs], request)
            assert engine.answer.tokens
            assert reference.answer.tokens == engine.answer.tokens
            kinds = [[f.kind for f in one.answer.forwards] for one in (engine, reference)]
            assert kinds[0] == kinds[1]


def test_stop_ids_can_be_ignored(tiny, loops):
    for name, loop in loops.items():
        with Generator.load(tiny[name]) as generator:
            request = generator.request([9, 8, 7], max_new_tokens=24, ignore_eos=True)
            row = loop.start(request)
            list(row.steps())
            assert row.answer == list(generator.run([request])[0].tokens)
            assert len(row.answer) == 24


def test_the_other_form_of_confidence_fixes_the_same_tokens(tiny, loops):
    with Generator.load(tiny["tiny-llada"]) as generator:
        loop = TorchLoop(loops["tiny-llada"].denoiser, generator.manifest, "own")
        request = generator.request("4+5=?", max_new_tokens=16, ignore_eos=True)
        row = loop.start(request)
        list(row.steps())
        assert row.answer == list(generator.run([request])[0].tokens)


@pytest.mark.parametrize("name", SAMPLERS)
def test_half_precision_is_half_precision_throughout(name, tiny):
    loop = TorchLoop.load(Bundle.open(tiny[name]), "bfloat16")
    assert {weight.dtype for weight in loop.denoiser.parameters()} == {torch.bfloat16}
    assert loop.denoiser.rope.inv_freq.dtype == torch.float32
    logits, present = loop.logits(torch.tensor([[1, 2, 3]]), 0, loop.empty())
    assert logits.dtype == present[0][0].dtype == torch.bfloat16
    assert logits.shape[:2] == (1, 3)


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_depend_on_the_seed_only(name, tiny, loops):
    with Generator.load(tiny[name]) as generator:
        sampler = replace(generator.sampler, temperature=4.0)
        answers = []
        for seed in (1, 1, 2):
            request = generator.request(
                [9, 8, 7], max_new_tokens=24, sampler=sampler, seed=seed, ignore_eos=True
            )
            row = loops[name].start(request)
            list(row.steps())
            answers.append(row.answer)
    assert answers[0] == answers[1] != answers[2]
    assert not {token for answer in answers for token in answer} & set(
        loops[name].manifest.tokens.suppressed
    )


def test_filters_cut_the_distribution(loops, tiny):
    with Generator.load(tiny["tiny-sdar"]) as generator:
        sampler = SamplerConfig(name="low_confidence_static", temperature=0.8, top_k=2, top_p=0.9)
        row = loops["tiny-sdar"].start(generator.request([1, 2], sampler=sampler))
    logits = torch.tensor([[3.0, 2.9, 2.8, -1.0]]).repeat(200, 1)
    tokens, confidence = row.sample(logits)
    assert set(tokens.tolist()) == {0, 1}
    assert confidence.min() > 0.4
    # The first alone holds 0.9 of the mass.
    tokens, confidence = row.sample(torch.tensor([[9.0, 1.0, 0.0, 0.0]]))
    assert (tokens.tolist(), confidence.tolist()) == ([0], [1.0])


@pytest.mark.parametrize(
    ("name", "sampler", "words"),
    [
        ("tiny-llada", SamplerConfig(name="random"), "no torch loop for the sampler random"),
        ("tiny-llada", SamplerConfig(factor=1.0), "knows no factor"),
        ("tiny-llada", SamplerConfig(top_k=4), "knows no top_k"),
        ("tiny-llada", SamplerConfig(schedule="linear"), "knows no schedule"),
        ("tiny-llada", SamplerConfig(guidance=1.0), "knows no guidance"),
        (
            "tiny-sdar",
            SamplerConfig(name="sequential", cache="dual", sub_block_length=2),
            "the cache dual of the regime block",
        ),
        ("tiny-sdar", SamplerConfig(name="low_confidence"), "low_confidence of the regime block"),
    ],
)
def test_what_the_references_do_not_do_is_refused(name, sampler, words, loops):
    with pytest.raises(UsageError, match=words):
        check(loops[name].manifest, sampler)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 8}, "with a sliding window"),
        ({"seeded": True}, "with blocks seeded by the one before"),
        ({"aligned_to": "answer"}, "with blocks counted from the answer"),
        ({"last_block": "cut"}, "with a last block that is cut"),
        ({"aligned_to": "answer", "seeded": True}, "before, blocks counted"),
    ],
)
def test_attention_that_the_references_do_not_have_is_refused(changes, words, loops):
    manifest = loops["tiny-sdar"].manifest
    check(manifest, SAMPLERS["tiny-sdar"][0])
    other = manifest.model_copy(update={"attention": manifest.attention.model_copy(update=changes)})
    with pytest.raises(UsageError, match=f"no torch loop for sdar .*{words}"):
        check(other, SAMPLERS["tiny-sdar"][0])


def test_a_last_block_that_is_cut_is_what_llada_does(loops):
    manifest = loops["tiny-llada"].manifest
    attention = manifest.attention.model_copy(update={"last_block": "cut"})
    check(manifest.model_copy(update={"attention": attention}), SAMPLERS["tiny-llada"][0])


def test_a_network_that_the_references_do_not_have_is_refused(loops):
    manifest = loops["tiny-llada"].manifest
    switch = TensorSpec(name="adapter", dtype="float32", shape=("batch",))
    for changes, words in (
        ({"shift": 1}, "shifted logits"),
        ({"inputs": (*manifest.inputs, switch)}, "an adapter"),
    ):
        with pytest.raises(UsageError, match=f"with {words}"):
            check(manifest.model_copy(update=changes), SAMPLERS["tiny-llada"][0])


def test_a_regime_without_a_loop(loops):
    manifest = loops["tiny-sdar"].manifest
    other = manifest.model_copy(
        update={"attention": manifest.attention.model_copy(update={"regime": "context"})}
    )
    with pytest.raises(UsageError, match="leave out --compare"):
        check(other, SamplerConfig())
