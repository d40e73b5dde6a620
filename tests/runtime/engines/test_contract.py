"""What every engine that runs on this machine must do alike, whatever its library."""

import shutil
from dataclasses import replace

import handmade
import numpy as np
import pytest

from dlmc.validate.reference import load_reference
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import OUTPUTS, Store
from dlmc_runtime.errors import BundleError, EngineError, UsageError
from dlmc_runtime.generate import Generator
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.scheduler import Scheduler


@pytest.fixture(scope="session", params=["onnxruntime-cpu", "openvino-cpu"])
def target(request):
    return request.param


@pytest.fixture(scope="session")
def original(tmp_path_factory, target):
    root = handmade.write(tmp_path_factory.mktemp(target) / "bundle")
    return handmade.bind(root, target, engines.ENGINES[target].distribution)


@pytest.fixture
def root(original, tmp_path):
    return shutil.copytree(original, tmp_path / "bundle")


@pytest.fixture
def engine(original, target):
    made = engines.load(Bundle.open(original), target)
    yield made
    made.close()


def fed(engine):
    inputs = engine.inputs(engine.profiles[0])
    inputs.input_ids[:] = [[4, 5, 6, 7]]
    inputs.position_ids[:] = [[8, 9, 10, 11]]
    inputs.head_rows[:] = [[3, 2, 1, 0]]
    inputs.attention_mask[:] = True
    return inputs


def test_a_forward_answers_for_the_rows_it_is_asked_about(engine):
    assert engine.profiles == handmade.PROFILES
    out = engine.forward(fed(engine), engine.cache(1, 24), [])
    assert out.sampled_id.tolist() == [handmade.TABLE[[11, 10, 9, 8]].tolist()]
    assert out.top_ids[..., 0].tolist() == out.sampled_id.tolist()
    np.testing.assert_allclose(out.sampled_logit, -0.1)
    assert out.logsumexp.dtype == np.float32


def test_a_forward_stores_what_it_is_told_to(engine):
    cache = engine.cache(1, 24)
    engine.forward(fed(engine), cache, [])
    assert cache.filled.tolist() == [0]
    engine.forward(fed(engine), cache, [Store(0, 3)])
    engine.forward(fed(engine), cache, [Store(0, 4)])
    assert cache.filled.tolist() == [7]
    keys, values = cache.past.values()
    assert keys[0, 0, :8, 0].tolist() == [4, 5, 6, 4, 5, 6, 7, 0]
    assert values[0, 0, :8, 0].tolist() == [-4, -5, -6, -4, -5, -6, -7, 0]


def test_a_store_at_a_position_ends_its_row_there(engine):
    cache = engine.cache(1, 24)
    engine.forward(fed(engine), cache, [Store(0, 4)])
    engine.forward(fed(engine), cache, [Store(0, 4)])
    engine.forward(fed(engine), cache, [Store(0, 2, at=1)])
    assert cache.filled.tolist() == [3]
    keys, _ = cache.past.values()
    assert keys[0, 0, :3, 0].tolist() == [4, 4, 5]
    engine.forward(fed(engine), cache, [Store(0, 3)])
    assert cache.filled.tolist() == [6]
    assert keys[0, 0, :6, 0].tolist() == [4, 4, 5, 4, 5, 6]


@pytest.mark.parametrize(
    "store",
    [
        *(Store(0, 4, at) for at in (-1, 21, 24, 1 << 40)),
        *(Store(0, count, 0) for count in (-1, 5, 1 << 40)),
        *(Store(row, 1) for row in (-1, 1, 1 << 40)),
    ],
)
def test_a_store_that_does_not_fit_is_refused(engine, store):
    cache = engine.cache(1, 24)
    engine.forward(fed(engine), cache, [Store(0, 2)])
    with pytest.raises(ValueError, match=r"do not fit into 24|of a block of 4|no row"):
        engine.forward(fed(engine), cache, [store])
    assert cache.filled.tolist() == [2]
    assert cache.contents().past["past_key_values.0.key"][0, 0, :3, 0].tolist() == [4, 5, 0]


@pytest.fixture(scope="session")
def extended(tmp_path_factory, target):
    root = handmade.write(tmp_path_factory.mktemp(target) / "extended", extended=True)
    return handmade.bind(root, target, engines.ENGINES[target].distribution)


@pytest.mark.parametrize("index", range(4))
def test_inputs_that_not_every_graph_has_reach_it(extended, target, index):
    engine = engines.load(Bundle.open(extended), target)
    profile = engine.profiles[index]
    inputs, cache = engine.inputs(profile), engine.cache(profile.batch, profile.cache)
    for turn in range(2):  # what is filled in place is read anew
        inputs.head_rows[:] = turn + np.arange(profile.rows) % 3
        wanted = handmade.feed_extras(inputs)
        found = engine.forward(inputs, cache, [])
        for name, array in wanted.items():
            np.testing.assert_array_equal(getattr(found, name), array, err_msg=name)
    engine.close()


def test_a_row_is_its_own_partner_until_it_is_told_otherwise(extended, target):
    engine = engines.load(Bundle.open(extended), target)
    inputs = engine.inputs(engine.profiles[2])
    found = {name: array.tolist() for name, array in inputs.arrays().items()}
    assert found["partner"] == [0, 1]
    assert found["guidance"] == found["adapter"] == [0, 0]
    for mask in inputs.masks():
        assert mask.any(-1).all()
    engine.close()


def test_graphs_without_them_are_not_fed_them(engine):
    inputs = engine.inputs(engine.profiles[0])
    assert inputs.masks() == [inputs.attention_mask]
    assert (inputs.sliding_attention_mask, inputs.adapter) == (None, None)
    assert (inputs.guidance, inputs.partner) == (None, None)


@pytest.mark.slow
def test_a_guided_row_is_combined_with_its_partner(exported, target):
    bundle, plain = exported("sdar", target, "guided"), exported("sdar", target, "logits")
    engine, reference = engines.load(bundle, target), load_reference(plain, ())
    profile = next(one for one in engine.profiles if one.batch == 4 and one.rows > 1)
    inputs, cache = engine.inputs(profile), engine.cache(profile.batch, profile.cache)
    rng = np.random.default_rng(0)
    assert inputs.guidance is not None
    assert inputs.partner is not None
    inputs.input_ids[:] = rng.integers(0, 256, inputs.input_ids.shape)
    inputs.position_ids[:] = np.arange(profile.block)
    inputs.attention_mask[..., profile.cache :] = True
    inputs.head_rows[:] = np.arange(profile.rows)
    inputs.guidance[:] = [1.5, 7.0, 0.5, 2.0]
    inputs.partner[:] = [1, 1, 0, 3]
    found = engine.forward(inputs, cache, [])
    feeds = {k: v for k, v in inputs.arrays().items() if k not in ("guidance", "partner")}
    logits = reference.run({**feeds, **cache.contents().past})["logits"]
    u = logits[inputs.partner]
    guided = u + (1 + inputs.guidance[:, None, None]) * (logits - u)
    guided[..., list(bundle.manifest.tokens.suppressed)] = -np.inf
    best = guided.max(-1)
    np.testing.assert_array_equal(found.sampled_id, guided.argmax(-1))
    np.testing.assert_allclose(found.sampled_logit, best, atol=2e-3, rtol=1e-4)
    total = best + np.log(np.exp(guided - best[..., None]).sum(-1))
    np.testing.assert_allclose(found.logsumexp, total, atol=2e-3, rtol=1e-4)
    torch = load_reference(bundle, engine.profiles)
    theirs = torch.forward(inputs, torch.cache(profile.batch, profile.cache), [])
    for name in ("top_logits", "logsumexp", "entropy", "tempered_entropy"):
        ours, wanted = getattr(found, name), getattr(theirs, name)
        np.testing.assert_allclose(ours, wanted, atol=2e-3, rtol=1e-4, err_msg=name)
    # Rows that are their own partners are as if there were no guidance at all.
    inputs.guidance[:] = 0
    bare = engine.forward(inputs, cache, [])
    for name in OUTPUTS:
        for row in (1, 3):
            np.testing.assert_array_equal(getattr(found, name)[row], getattr(bare, name)[row])
    engine.close()


def test_a_closed_engine_says_so(engine):
    inputs, cache = fed(engine), engine.cache(1, 24)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        engine.forward(inputs, cache, [])


def test_an_unknown_target_lists_the_engines_that_were_built(original, target):
    with pytest.raises(UsageError, match=f"no target is called 'abacus': choose one of {target}$"):
        engines.load(Bundle.open(original), "abacus")


def test_an_unknown_target_lists_the_known_ones_where_nothing_was_built(tmp_path):
    bundle = Bundle.open(handmade.write(tmp_path / "bundle"))
    with pytest.raises(UsageError, match="no target is called 'abacus': choose one of onnxruntime"):
        engines.load(bundle, "abacus")


def test_an_engine_needs_weights_and_a_build(root, target):
    shutil.rmtree(root / "engines")
    with pytest.raises(BundleError, match=r"no engine for .* found"):
        engines.load(Bundle.open(root), target)
    handmade.seal(root, weights=())
    with pytest.raises(BundleError, match="has no weights"):
        engines.load(Bundle.open(root), target)


def reload(root, target, model):
    (root / "denoiser.onnx").write_bytes(model.SerializeToString())
    handmade.rebind(handmade.seal(root), target)
    return engines.load(Bundle.open(root), target)


def test_a_graph_must_have_the_inputs_and_outputs_of_its_manifest(root, target):
    renamed = handmade.graph()
    renamed.graph.input[0].name = "ids"
    with pytest.raises(EngineError, match="cannot load"):
        reload(root, target, renamed)
    missing = handmade.graph()
    del missing.graph.output[-1]
    with pytest.raises(EngineError, match=r"disagree about present\.0\.value"):
        reload(root, target, missing)
    with pytest.raises(EngineError, match="disagree about temperature"):
        reload(root, target, handmade.graph(temperature="int64"))
    flat = handmade.graph()
    del flat.graph.input[-1].type.tensor_type.shape.dim[0]
    with pytest.raises(EngineError, match="disagree about uniform"):
        reload(root, target, flat)


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [2, 1 << 40])
def test_a_graph_must_have_the_caches_of_its_manifest(root, target, key, value):
    model = {**Bundle.open(root).manifest.model.model_dump(), key: value}
    handmade.rebind(handmade.seal(root, model=model), target)
    with pytest.raises(EngineError, match="disagree about the cache"):
        engines.load(Bundle.open(root), target)


def test_a_graph_that_answers_other_shapes_is_refused(root, target):
    model = handmade.graph()
    model.graph.node[0].input[1] = "position_ids"  # one answer for each position fed
    model.graph.node[0].op_type = "Sub"
    model.graph.node[0].attribute.pop()
    engine = reload(root, target, model)
    inputs = engine.inputs(engine.profiles[1])
    inputs.position_ids[:] = 1
    with pytest.raises(EngineError, match="answers other shapes than 1x8 over 24, 1 rows"):
        engine.forward(inputs, engine.cache(1, 24), [])


def generate(engine, requests):
    return [replace(result, seconds=0.0) for result in Generator(engine, None).run(requests)]


SAMPLERS = {
    "llada": [
        SamplerConfig(),
        SamplerConfig(steps=3, block_length=5),
        SamplerConfig(threshold=0.6),
        SamplerConfig(factor=1.0),
        SamplerConfig(name="random", steps=4),
    ],
    "sdar": [
        SamplerConfig(name="low_confidence_static", steps=2),
        SamplerConfig(name="low_confidence_dynamic", threshold=0.5),
        SamplerConfig(name="sequential"),
        SamplerConfig(name="low_confidence_dynamic", top_k=1),
        SamplerConfig(name="low_confidence_static", top_k=20, top_p=0.9),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("family", SAMPLERS)
def test_the_engine_gives_the_tokens_of_torch_and_a_batch_those_of_its_rows(
    exported, prompts, family, target
):
    bundle = exported(family, target)
    with Generator.load(bundle.root, target) as generator:
        reference = load_reference(bundle, generator.profiles)
        requests = [
            generator.request(prompt, max_new_tokens=14, sampler=sampler, seed=5, ignore_eos=True)
            for prompt, sampler in zip(prompts, SAMPLERS[family], strict=True)
        ]
        alone = [generate(generator.engine, [request])[0] for request in requests]
        assert alone == [generate(reference, [request])[0] for request in requests]
        assert generate(generator.engine, requests) == alone
    assert len({result.tokens for result in alone}) == len(prompts)


@pytest.mark.slow
@pytest.mark.parametrize("family", SAMPLERS)
def test_draws_do_not_depend_on_the_engine(exported, prompts, family, target):
    bundle = exported(family, target)
    with Generator.load(bundle.root, target) as generator:
        reference = load_reference(bundle, generator.profiles)
        hot = generator.sampler.updated(temperature=1.0)
        texts = set()
        for seed in range(3):
            request = generator.request(
                prompts[1], max_new_tokens=8, sampler=hot, seed=seed, ignore_eos=True
            )
            ours, theirs = (generate(e, [request])[0] for e in (generator.engine, reference))
            assert ours == theirs
            texts.add(ours.tokens)
    assert len(texts) == 3


@pytest.mark.slow
def test_text_goes_in_and_out(exported, target):
    with Generator.load(exported("sdar", target).root, target) as generator:
        request = generator.request("hello", max_new_tokens=6, ignore_eos=True)
        result = generator.run([request])[0]
        assert generator.text is not None
        assert result.text == generator.text.decode(result.tokens)
        assert len(result.tokens) == 6


def test_a_narrow_forward_uses_the_front_of_a_wider_cache(engine):
    cache = engine.cache(2, 24)
    for past in cache.past.values():
        past[:] = 50
    engine.forward(fed(engine), cache, [Store(0, 3)])
    engine.forward(fed(engine), cache, [Store(0, 2)])
    assert cache.filled.tolist() == [5, 0]
    keys, _ = cache.past.values()
    assert keys[0, 0, :6, 0].tolist() == [4, 5, 6, 4, 5, 50]
    assert (keys[1] == 50).all()


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_rows_that_come_and_go_are_what_they_would_be_alone(exported, target, prompts, family):
    bundle = exported(family, target)
    engine = engines.load(bundle, target)
    generator = Generator(engine, None)
    cached = {"cache": "dual", "block_length": 8} if family == "llada" else {}
    asked = [
        generator.request(
            prompt,
            max_new_tokens=4 + 3 * index,
            sampler=generator.sampler.updated(steps=4, **cached),
            ignore_eos=True,
        )
        for index, prompt in enumerate(prompts)
    ]
    alone = [generator.run([request])[0] for request in asked]
    with Scheduler(generator) as scheduler:
        tickets = [scheduler.submit(request, lambda event: None) for request in asked * 2]
        together = [ticket.result(60.0) for ticket in tickets]
        fed, had = scheduler.statistics().rows_fed, scheduler.statistics().slots_fed
    assert [one.tokens for one in together] == [one.tokens for one in alone * 2]
    assert 0.5 < fed / had <= 1.0
    engine.close()
