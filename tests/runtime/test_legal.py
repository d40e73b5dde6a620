import pytest

from dlmc_runtime import legal, samplers
from dlmc_runtime.errors import RequestError, UsageError
from dlmc_runtime.samplers.config import SamplerConfig

# A model of random tokens.
NOISE = {"tokens": {"mask": None, "stop": (60,), "pad": 61, "suppressed": ()}}


@pytest.fixture
def refusal(manifest):
    def ask(name, regime, guided=False, candidates=None, masked=True, **options):
        made = manifest(regime, guided=guided, **({} if masked else NOISE))
        if candidates is not None:
            head = made.head.model_copy(update={"candidates": candidates})
            made = made.model_copy(update={"head": head})
        with pytest.raises((UsageError, RequestError)) as caught:
            legal.check(SamplerConfig(name, **options), made)
        return f"{caught.value}"

    return ask


@pytest.mark.parametrize("regime", ["full", "block", "context"])
def test_every_sampler_is_legal_by_itself_where_its_regime_says_so(manifest, refusal, regime):
    for name in set(samplers.SAMPLERS) - {"levenshtein"}:
        if regime in legal.regimes_of(name) and legal.fills_masks(name):
            legal.check(SamplerConfig(name), manifest(regime))
        else:
            assert f"{name} does not go with test" in refusal(name, regime)
    assert set(legal.samplers_of(regime)) <= set(samplers.SAMPLERS)


def test_models_of_random_tokens_have_one_sampler_and_it_has_no_others(manifest, refusal):
    assert legal.samplers_of("context", masked=False) == ["renoise"]
    assert "renoise" not in legal.samplers_of("context")
    legal.check(SamplerConfig("renoise"), manifest("context", **NOISE))
    for name in samplers.SAMPLERS:
        if name != "renoise":
            said = refusal(name, "context", masked=False)
            assert said == f"the sampler {name} does not go with test: use one of renoise"


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.5},
        {"block_length": 2},
        {"sub_block_length": 2},
        {"cache": "dual"},
        {"guidance": 1.0},
        {"guidance_keep": (1,)},
        {"threshold": 0.5},
    ],
)
def test_what_a_canvas_of_random_tokens_has_no_use_for_is_refused(refusal, options):
    said = refusal("renoise", "context", masked=False, **options)
    assert said.startswith(f"the sampler renoise takes no {next(iter(options))}: it heeds conf")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"t_min": 0.4, "t_max": 0.4}, "t_max 0.4 is not above t_min 0.4"),
        ({"t_min": 0.8}, "t_max 0.8 is not above t_min 0.8"),
        ({"t_max": 0.3}, "t_max 0.3 is not above t_min 0.4"),
        (
            {"t_min": 0.0, "steps": 1000},
            "the last of 1000 steps would have a temperature of 0.0008",
        ),
    ],
)
def test_temperatures_fall_and_never_reach_nothing(refusal, options, said):
    assert refusal("renoise", "context", masked=False, **options).startswith(said)


def test_the_coldest_temperature_may_be_nothing(manifest):
    legal.check(SamplerConfig("renoise", t_min=0.0, steps=48), manifest("context", **NOISE))


def test_what_a_model_can_do_is_listed(refusal):
    known = ", ".join(name for name in legal.samplers_of("block") if name != "levenshtein")
    assert refusal("wino", "block").endswith(f"use one of {known}")


def test_levenshtein_needs_tokens_that_delete_and_insert(refusal, manifest):
    assert "test has no tokens that delete and insert" in refusal("levenshtein", "block")
    plain = manifest("block")
    tokens = plain.tokens.model_copy(update={"delete": 1, "split": 2})
    made = plain.model_copy(update={"tokens": tokens})
    assert legal.samplers_for("block", tokens) == legal.samplers_of("block")
    assert "levenshtein" not in legal.samplers_for("block", plain.tokens)
    legal.check(SamplerConfig("levenshtein"), made)
    for option in ({"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.9}):
        with pytest.raises(RequestError, match="levenshtein editing takes the best token"):
            legal.check(SamplerConfig("levenshtein", **option), made)
    two = made.head.model_copy(update={"candidates": 2})
    with pytest.raises(RequestError, match="needs three candidates"):
        legal.check(SamplerConfig("levenshtein"), made.model_copy(update={"head": two}))


@pytest.mark.parametrize(
    ("regime", "cache", "hint"),
    [
        ("block", "prefix", "dual goes with sub_block_length"),
        ("block", "none", "leave it out: its cache is exact"),
        ("context", "dual", "leave it out"),
    ],
)
def test_a_cache_that_a_model_lacks_is_refused(refusal, regime, cache, hint):
    message = refusal("low_confidence", regime, cache=cache)
    assert f"no cache '{cache}'" in message
    assert hint in message


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_whole_sequence_models_have_all_caches(manifest, cache):
    legal.check(SamplerConfig(cache=cache), manifest("full"))


@pytest.mark.parametrize(
    ("name", "options", "heeded"),
    [
        ("random", {"threshold": 0.9}, "it heeds eps, schedule, steps"),
        ("low_confidence", {"gamma": 1.0}, "it heeds defer_ids"),
        ("autoregressive", {"steps": 3}, "it has no options"),
    ],
)
def test_an_option_that_is_not_heeded_is_refused(name, options, heeded):
    with pytest.raises(UsageError) as caught:
        legal.check_heeded(SamplerConfig(name, **options))
    assert f"{name} takes no {next(iter(options))}" in f"{caught.value}"
    assert heeded in f"{caught.value}"


def test_heeded_options_are_fields():
    known = SamplerConfig.__dataclass_fields__.keys()
    assert known >= legal.COMMON
    for name in samplers.SAMPLERS:
        assert samplers.find(name).heeds <= known - legal.COMMON


@pytest.mark.parametrize(
    ("name", "regime", "options", "said"),
    [
        ("low_confidence", "block", {"block_length": 8}, "differs from the model's 4"),
        ("low_confidence", "context", {"block_length": 8}, "exceeds the model's 4"),
        ("low_confidence", "full", {"sub_block_length": 2}, "has no sub-blocks"),
        ("low_confidence", "block", {"cache": "dual"}, "is for sub-blocks"),
        ("low_confidence", "full", {"top_k": 9}, "more candidates than the 8"),
        ("low_confidence", "full", {"guidance": 1.0}, "no head for classifier-free guidance"),
        ("linear_speculation", "context", {"temperature": 0.5}, "at temperature 0 only"),
        ("wino", "full", {"cache": "dual"}, "the whole canvas at every step"),
        ("credit", "full", {"temperature": 0.5}, "takes the best token"),
        ("credit", "full", {"top_k": 2}, "takes the best token"),
        ("credit", "full", {"top_p": 0.9}, "takes the best token"),
        ("autoregressive", "context", {"sub_block_length": 2}, "has no sub-blocks"),
        ("linear_speculation", "context", {"sub_block_length": 2}, "has no sub-blocks"),
        ("token_editing", "block", {"sub_block_length": 2}, "has no sub-blocks"),
        ("low_confidence", "full", {"guidance_keep": (1,)}, "no effect without guidance"),
    ],
)
def test_what_does_not_go_together_is_refused(refusal, name, regime, options, said):
    assert said in refusal(name, regime, **options)


def test_a_margin_needs_two_candidates(refusal, manifest):
    assert "needs two candidates" in refusal("topk_margin", "full", candidates=1)
    legal.check(SamplerConfig("topk_margin"), manifest("full"))


@pytest.mark.parametrize("name", ["wino", "autoregressive", "linear_speculation"])
def test_some_samplers_cannot_be_guided(refusal, name):
    regime = legal.regimes_of(name)[0]
    assert "cannot be guided" in refusal(name, regime, guided=True, guidance=1.0)


def test_guidance_and_smaller_blocks_are_legal_where_they_can_be(manifest):
    legal.check(SamplerConfig(guidance=1.0), manifest("full", guided=True))
    legal.check(SamplerConfig(block_length=2), manifest("context"))
    legal.check(SamplerConfig(sub_block_length=2, cache="dual"), manifest("block"))


def test_where_spans_grow_only_an_order_counts(manifest):
    made = manifest("full")
    for name in legal.GROWING:
        legal.check_growing(SamplerConfig(name, temperature=0.5, top_p=0.9), made)
    for config, said in (
        (SamplerConfig("wino"), "not filled by wino"),
        (SamplerConfig(steps=3), "steps has no effect"),
        (SamplerConfig(cache="dual"), "cache has no effect"),
        (SamplerConfig("entropy", alg_temp=0.5), "alg_temp has no effect"),
    ):
        with pytest.raises(RequestError, match=said):
            legal.check_growing(config, made)


def test_where_spans_grow_two_candidates_are_needed(manifest):
    made = manifest("full")
    alone = made.head.model_copy(update={"candidates": 1})
    with pytest.raises(RequestError, match="two candidates"):
        legal.check_growing(SamplerConfig(), made.model_copy(update={"head": alone}))


def test_a_sub_block_is_no_longer_than_its_block(refusal):
    said = refusal("low_confidence", "block", sub_block_length=5)
    assert "sub_block_length 5 exceeds the block of 4" in said


def test_tokens_that_choose_experts_together_are_not_split(manifest):
    own = manifest("block")
    attention = own.attention.model_copy(update={"routing_block": 4})
    config = SamplerConfig(sub_block_length=2, cache="dual")
    with pytest.raises(RequestError, match="has no sub-blocks: 4 tokens choose their experts"):
        legal.check(config, own.model_copy(update={"attention": attention}))
