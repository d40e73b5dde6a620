import numpy as np
import oracle
import pytest

from dlmc_runtime.errors import BundleError, RequestError, UsageError
from dlmc_runtime.events import Committed, Denoised, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.infill import Hole
from dlmc_runtime.manifest import Profile
from dlmc_runtime.samplers.config import SamplerConfig

MASK, EOS = 63, 60
SCRIPT = np.arange(60)


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


@pytest.fixture
def generator(manifest, scripted, codec):
    """Make a generator over a scripted engine."""

    def make(regime="block", profiles=None, script=SCRIPT, text=None, **changes):
        return Generator(scripted(manifest(regime, profiles=profiles, **changes), script), text)

    return make


def expected(prompt, count):
    return tuple(range(prompt, prompt + count))


def test_one_prompt_gives_one_result_and_a_list_a_list(generator):
    one = generator().generate([1, 2, 3], max_new_tokens=5)
    assert one.tokens == expected(3, 5)
    assert (one.prompt_tokens, one.finish_reason) == (3, "length")
    assert one.seconds > 0
    several = generator().generate([[1, 2, 3], [1]], max_new_tokens=5)
    assert [result.tokens for result in several] == [expected(3, 5), expected(1, 5)]
    assert generator().generate([[1, 2]], max_new_tokens=1)[0].tokens == (2,)


def test_numpy_prompts_are_token_ids(generator):
    assert generator().generate(np.arange(3), max_new_tokens=2).tokens == (3, 4)


def test_text_prompts_are_encoded_without_special_tokens(generator, codec):
    script = np.resize(codec.encode("wxyz"), 60)
    with_text = generator(script=script, text=codec)
    result = with_text.generate("abcd", max_new_tokens=6)
    assert (result.prompt_tokens, result.text) == (4, "wxyzwx")
    assert [r.text for r in with_text.generate(["a", "ab"], max_new_tokens=2)] == ["xy", "yz"]


def test_defaults_come_from_the_manifest(generator):
    sampler = {"name": "low_confidence_dynamic", "parameters": {"threshold": 0.5}}
    made = generator(sampler=sampler, max_new_tokens=7)
    assert made.sampler == SamplerConfig(name="low_confidence_dynamic", threshold=0.5)
    result = made.generate([1])
    assert len(result.tokens) == 7
    assert result.forwards == 3  # every position is sure enough: denoise, commit, denoise


def test_rows_may_differ_in_everything(generator):
    made = generator("full", profiles=shapes((4, 40, 0, 16)))
    requests = [
        made.request([1], max_new_tokens=9, sampler=SamplerConfig(block_length=3)),
        made.request([1] * 20, max_new_tokens=4, sampler=SamplerConfig(name="random"), seed=9),
        made.request([1] * 5, max_new_tokens=16, sampler=SamplerConfig(threshold=0.1)),
    ]
    results = made.run(requests)
    assert [r.tokens for r in results] == [expected(1, 9), expected(20, 4), expected(5, 16)]
    assert [r.forwards for r in results] == [9, 4, 4]


def test_more_prompts_than_the_widest_batch_take_turns(generator):
    made = generator(profiles=shapes((2, 4, 48, 4), (2, 16, 48, 1)))
    prompts = [[1] * count for count in (1, 9, 4, 2, 12)]
    results = made.generate(prompts, max_new_tokens=5)
    assert [r.tokens for r in results] == [expected(len(p), 5) for p in prompts]
    events = list(made.events([made.request(p, max_new_tokens=5) for p in prompts]))
    # A prompt of two tokens needs no forward of its own, one of four does.
    assert [e.row for e in events if isinstance(e, Finished)] == [0, 1, 3, 2, 4]
    assert {e.row for e in events if isinstance(e, Denoised | Committed)} == set(range(5))


def test_prompts_too_long_for_a_wide_batch_run_in_a_narrow_one(generator):
    made = generator(profiles=shapes((1, 4, 48, 4), (4, 4, 8, 4)))
    prompts = [[1], [1] * 30, [1], [1], [1]]
    results = made.generate(prompts, max_new_tokens=5)
    assert [r.tokens for r in results] == [expected(len(p), 5) for p in prompts]
    full = generator("full", profiles=shapes((1, 60, 0, 8), (4, 16, 0, 8)))
    results = full.generate(prompts, max_new_tokens=5)
    assert [r.tokens for r in results] == [expected(len(p), 5) for p in prompts]


def test_a_prompt_that_does_not_fit_is_refused_before_the_first_forward(generator):
    made = generator(profiles=shapes((1, 4, 16, 4)))
    with pytest.raises(RequestError, match="need 32 cached positions"):
        made.generate([[1], [1] * 30], max_new_tokens=4)
    assert made.engine.calls == []


def test_nothing_to_do_gives_nothing(generator):
    assert generator().run([]) == []


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 8])
def test_lengths_need_not_be_whole_blocks(generator, prompt, count):
    for regime in ("full", "block", "context"):
        result = generator(regime).generate([1] * prompt, max_new_tokens=count)
        assert result.tokens == expected(prompt, count)


def test_a_stop_id_ends_the_answer_unless_ignored(generator):
    script = SCRIPT.copy()
    script[7] = EOS
    made = generator(script=script)
    result = made.generate([1, 2, 3], max_new_tokens=9)
    assert (result.tokens, result.finish_reason) == ((3, 4, 5, 6), "stop")
    result = made.generate([1, 2, 3], max_new_tokens=9, ignore_eos=True)
    assert result.tokens == (3, 4, 5, 6, EOS, 8, 9, 10, 11)
    assert result.finish_reason == "length"


def test_special_tokens_are_in_the_text_where_asked_for(generator, codec):
    script = codec.encode(".<62>ab<pad>c.<62>ab")
    made = generator(script=script, text=codec)
    assert made.generate(".", max_new_tokens=5).text == "abc"
    shown = made.generate(".", max_new_tokens=5, skip_special_tokens=False)
    assert shown.text == "<62>ab<pad>c"
    assert shown.tokens == tuple(codec.encode("<62>ab<pad>c"))


def test_stop_strings_are_searched_in_the_text_that_is_shown(generator, codec):
    made = generator(script=codec.encode(".<62>ab<pad>c.<62>ab"), text=codec)
    options = {"max_new_tokens": 5, "stop": ["<pad>"]}
    assert made.generate(".", **options).finish_reason == "length"
    events = list(made.stream(".", skip_special_tokens=False, **options))
    result = events[-1].result
    assert (result.text, result.finish_reason) == ("<62>ab", "stop")
    assert "".join(e.text for e in events if isinstance(e, Committed)) == result.text


def test_stop_strings_may_overlap_and_span_tokens_and_blocks(generator, codec):
    script = codec.encode("..aabaabé🙂!!" * 2)
    made = generator(script=script, text=codec)

    def text(*stop):
        events = list(made.stream("..", max_new_tokens=20, stop=stop))
        result = events[-1].result
        assert "".join(e.text for e in events if isinstance(e, Committed)) == result.text
        assert result.finish_reason == "stop"
        return result.text

    assert text("aabé") == "aab"
    assert text("baab") == "aa"
    assert text("é🙂") == "aabaab"
    assert text("🙂", "!") == "aabaabé"
    assert text("a") == ""
    assert text("!!", "abaa") == "a"


def test_a_stream_ends_with_its_result(generator):
    events = list(generator().stream([1, 2], max_new_tokens=3))
    assert isinstance(events[-1], Finished)
    assert events[-1].result.tokens == (2, 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": -3}, "max_new_tokens is -3"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"stop": "abc"}, "stop is no list of strings"),
        ({"stop": ["a", ""]}, "one of them is empty"),
        ({"stop": [1]}, "stop is no list of strings"),
    ],
)
def test_options_that_mean_nothing_are_usage_errors(generator, codec, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        generator(text=codec).generate([1], **options)
    assert caught.value.hint


def test_prompts_that_cannot_be_served_say_why(generator, codec):
    made = generator()
    for prompt, message in [
        ([], "the prompt is empty"),
        ([1, 64], "token id 64"),
        ([-1], "token id -1"),
        ([1] * 250, "exceed the model's 256"),
        ([1] * 60, "need 64 cached positions, the engine holds 48"),
        ("text", "has no tokenizer"),
    ]:
        with pytest.raises(RequestError, match=message) as caught:
            made.generate(prompt, max_new_tokens=8)
        assert caught.value.hint
    with pytest.raises(RequestError, match="the prompt is empty"):
        generator(text=codec).generate("")
    with pytest.raises(RequestError, match="the prompt is empty"):
        made.generate([[1], []])


@pytest.mark.parametrize("prompt", [[[1.5]], [["a", 1]], 5, [1, [2]], [1.5], None])
def test_a_prompt_is_text_or_token_ids(generator, prompt):
    with pytest.raises(UsageError, match="neither text nor token ids"):
        generator().generate(prompt)


def test_what_the_bundle_lacks_is_refused(generator):
    with pytest.raises(RequestError, match="no tokenizer"):
        generator().generate([1], stop=["a"])
    with pytest.raises(RequestError, match="top_k 9 needs more candidates than the 8"):
        generator().generate([1], sampler=SamplerConfig(top_k=9))
    other = SamplerConfig(name="sequential", block_length=8)
    with pytest.raises(RequestError, match="block_length 8 differs from the model's 4"):
        generator().generate([1], sampler=other)
    assert generator("full").generate([1], sampler=SamplerConfig(block_length=8))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("greedy", {}, "no sampler is called 'greedy'"),
        ("sequential", {"steps": 0}, "steps is 0"),
        ("sequential", {"speed": 3}, "no parameter 'speed'"),
        ("sequential", {"self": 1}, "no parameter 'self'"),
        ("sequential", {"threshold": "high"}, "threshold is 'high'"),
        ("sequential", {"defer_ids": 3}, "defer_ids is 3"),
    ],
)
def test_a_manifest_with_an_impossible_sampler_is_refused(generator, name, parameters, message):
    with pytest.raises(BundleError, match=message):
        generator(sampler={"name": name, "parameters": parameters})


def test_a_sampler_parameter_cannot_rename_the_sampler(generator):
    sampler = {"name": "sequential", "parameters": {"name": "random"}}
    assert generator(sampler=sampler).sampler.name == "sequential"


def test_a_generator_closes_its_engine(generator):
    with generator() as made:
        assert made.profiles == made.manifest.profiles
        assert not made.engine.closed
    assert made.engine.closed


def test_a_missing_bundle_says_how_to_make_one(tmp_path):
    with pytest.raises(BundleError, match=r"no bundle manifest found.*dlmc export"):
        Generator.load(tmp_path / "nothing")


def test_a_template_is_filled(generator, codec):
    one = generator("full", profiles=shapes((1, 40, 0, 16)), text=codec)
    result = one.infill("ab<mask:3>cd<mask:2>", sampler=SamplerConfig(steps=1, block_length=16))
    script = [*codec.encode("ab"), *range(2, 5), *codec.encode("cd"), *range(7, 9)]
    assert result.tokens == (2, 3, 4, 7, 8)
    assert result.text == codec.decode(script)
    assert result.spans == (codec.decode([2, 3, 4]), codec.decode([7, 8]))
    assert (result.prompt_tokens, result.forwards, result.finish_reason) == (4, 1, "stop")


def test_a_template_has_limits(generator, codec):
    one = generator("full", profiles=shapes((1, 40, 0, 16)), text=codec)
    with pytest.raises(RequestError, match="fills spans as long as they are"):
        one.infill("ab<mask:3>", max_new_tokens=9)
    with pytest.raises(RequestError, match="exceed the model's 256"):
        one.infill("ab<mask:300>")
    with pytest.raises(RequestError, match="no profile takes 62 positions"):
        one.infill("ab<mask:60>")
    with pytest.raises(RequestError, match="token id 99"):
        one.infill([[99], Hole(2)])
    with pytest.raises(UsageError, match="seed"):
        one.infill("ab<mask:3>", seed=-1)
    with pytest.raises(UsageError, match="sampler"):
        one.infill("ab<mask:3>", sampler="random")


def test_a_bundle_without_a_tokenizer_fills_ids(generator):
    one = generator("full", profiles=shapes((1, 40, 0, 16)))
    result = one.infill([[5, 6], Hole(2)], sampler=SamplerConfig(steps=1))
    assert (result.tokens, result.text, result.spans) == ((2, 3), "", ())
    with pytest.raises(RequestError, match="no tokenizer"):
        one.infill("ab<mask:2>")


def test_growing_spans_have_room_for_more(generator, codec):
    tokens = {"mask": 63, "stop": (60,), "pad": 60, "suppressed": (63,), "expand": 58}
    one = generator(
        "full", profiles=shapes((1, 80, 0, 80)), tokens={**tokens, "delete": 60}, text=codec
    )
    request = one.infill_request("ab<mask:3>")
    assert request.max_new_tokens == 64
    assert one.infill_request("ab<mask:3>", max_new_tokens=5).max_new_tokens == 5
    with pytest.raises(UsageError, match="max_new_tokens is 2"):
        one.infill_request("ab<mask:3>", max_new_tokens=2)


def test_a_guided_row_takes_two_rows_of_a_batch(generator):
    one = generator("full", profiles=shapes((1, 40, 0, 16)), guided=True)
    guided = SamplerConfig(guidance=1.0)
    with pytest.raises(RequestError, match="guidance takes 2 rows of a batch, the engine has 1"):
        one.generate([1, 2], max_new_tokens=4, sampler=guided)
    assert one.generate([1, 2], max_new_tokens=4).tokens


def test_a_limit_of_steps_is_the_reason_where_it_ended_a_block(generator):
    one = generator("full", profiles=shapes((1, 40, 0, 16)))
    hard = SamplerConfig(threshold=0.99, steps=2, block_length=8)
    assert one.generate([1, 2], max_new_tokens=8, sampler=hard).finish_reason == "steps"
    assert one.generate([1, 2], max_new_tokens=2, sampler=hard).finish_reason == "length"


def test_requests_that_no_batch_takes_together_run_one_after_the_other(generator):
    made = shapes((1, 40, 0, 16), (2, 20, 0, 8), (2, 8, 20, 8), (2, 20, 20, 8))
    one = generator("full", profiles=made)
    cached = SamplerConfig(block_length=8, cache="dual")
    long = one.request([1] * 30, max_new_tokens=4)
    short = one.request([1] * 4, max_new_tokens=4, sampler=cached)
    for order in ([long, short], [short, long], [short, long, short], [long, short, short]):
        alone = [one.run([request])[0].tokens for request in order]
        assert [result.tokens for result in one.run(order)] == alone


def test_guided_and_other_requests_run_in_any_order(generator):
    one = generator("full", profiles=shapes((1, 40, 0, 16), (2, 20, 0, 16)), guided=True)
    guided = one.request([1] * 5, max_new_tokens=5, sampler=SamplerConfig(guidance=1.0))
    long = one.request([1] * 30, max_new_tokens=5)
    for order in ([guided, long], [long, guided], [guided, guided, long]):
        assert all(len(result.tokens) == 5 for result in one.run(order))


@pytest.mark.parametrize("prompt", [b"abc", {1: 2}, {1, 2}, (x for x in [1, 2]), [True], [b"a"], 7])
def test_what_is_no_prompt_is_refused(generator, prompt):
    with pytest.raises(UsageError, match="neither text nor token ids"):
        generator().generate(prompt)


def test_a_default_sampler_that_the_model_cannot_run_is_refused_at_once(generator):
    for name, parameters in (
        ("wino", {}),
        ("sequential", {"gamma": 1.0}),
        ("random", {"top_k": 99}),
    ):
        with pytest.raises(BundleError, match="the manifest's sampler"):
            generator(sampler={"name": name, "parameters": parameters})


def test_tokens_carry_their_probability_where_asked_for(generator):
    made = generator("full", script=SCRIPT, profiles=shapes((2, 40, 0, 16)))
    made.engine.sure[:] = np.linspace(0.2, 0.9, 60)
    options = {"max_new_tokens": 6, "sampler": SamplerConfig(steps=3, block_length=6)}
    assert made.generate([1, 2], **options).logprobs == ()
    result = made.generate([1, 2], logprobs=1, **options)
    assert [one.token for one in result.logprobs] == [*result.tokens]
    sure = made.engine.sure[2:8]
    np.testing.assert_allclose([one.logprob for one in result.logprobs], np.log(sure), rtol=1e-5)
    assert [one.top for one in result.logprobs] == [
        ((one.token, one.logprob),) for one in result.logprobs
    ]
    assert [one.forward for one in result.logprobs] == [3, 3, 2, 2, 1, 1]  # the surest are first


def test_a_probability_is_of_every_token_of_the_answer_and_of_no_other(generator, codec):
    script = codec.encode("..abcde!" * 7)
    made = generator(script=script, text=codec)
    stopped = made.generate("..", max_new_tokens=20, stop=["cd"], logprobs=0)
    assert stopped.text == "ab"
    assert len(stopped.tokens) == 4
    assert [one.token for one in stopped.logprobs] == [*stopped.tokens]
    assert all(one.top == () for one in stopped.logprobs)
    script = SCRIPT.copy()
    script[7] = EOS
    ended = generator(script=script).generate([1, 2, 3], max_new_tokens=9, logprobs=1)
    assert [one.token for one in ended.logprobs] == [3, 4, 5, 6]
    full = generator("full", script=codec.encode(".ab." * 15), text=codec)
    filled = full.infill([".", Hole(2), "!", Hole(1)], logprobs=1)
    assert [one.token for one in filled.logprobs] == [*filled.tokens]
    assert len(filled.tokens) == 3


@pytest.mark.parametrize("name", ["autoregressive", "linear_speculation"])
def test_what_the_causal_pass_decides_is_as_probable_as_it_says(torch_engine, name):
    attention = {"regime": "context", "block_length": 8, "aligned_to": "answer", "seeded": True}
    profiles = shapes((1, 8, 64, 8), (1, 16, 64, 1))
    engine = torch_engine("context", profiles=profiles, attention=attention)
    made = Generator(engine, None)
    for seed, prompt in enumerate(([1, 2, 3], [9] * 5, [*range(11)])):
        heat = 0.7 if name == "autoregressive" else 0.0
        sampler = SamplerConfig(name, temperature=heat)
        request = made.request(
            prompt, max_new_tokens=12, sampler=sampler, seed=seed, ignore_eos=True, logprobs=3
        )
        result = made.run([request])[0]
        plain = oracle.Run(engine, request)
        for index, found in enumerate(result.logprobs):
            text = np.array([*prompt, *result.tokens[:index]])
            said = plain.forward(text, lambda q, k: k <= q, [len(text) - 1], np.zeros(1))
            ids = said["top_ids"][0, 0].tolist()
            logprobs = said["top_logits"][0, 0] - said["logsumexp"][0, 0]
            assert [token for token, _ in found.top] == ids[:3]
            if found.token in ids:
                assert found.logprob == pytest.approx(logprobs[ids.index(found.token)], abs=1e-3)


def test_a_probability_is_that_of_the_forward_that_decided(torch_engine):
    made = Generator(torch_engine("block"), None)
    for name in ("low_confidence_dynamic", "low_confidence_static"):
        sampler = SamplerConfig(name, steps=3)
        events = list(
            made.stream([1, 2, 3], max_new_tokens=9, sampler=sampler, ignore_eos=True, logprobs=2)
        )
        steps = {event.forward: event for event in events if isinstance(event, Denoised)}
        finished = events[-1]
        assert isinstance(finished, Finished)
        for position, found in enumerate(finished.result.logprobs):
            step = steps[found.forward]
            assert step.canvas[position] == found.token
            sure = step.confidence[position - step.start]
            assert found.logprob == pytest.approx(np.log(sure), abs=1e-4)


def test_more_alternatives_than_the_graph_keeps_are_refused(generator):
    with pytest.raises(RequestError, match="asks for more alternatives than the 8 the graph") as e:
        generator().generate([1], logprobs=9)
    assert "--candidates 9" in e.value.hint
    for wrong in (-1, True, 1.5):
        with pytest.raises(UsageError, match=f"logprobs is {wrong}"):
            generator().generate([1], logprobs=wrong)


def test_growing_spans_have_no_probabilities(generator, codec):
    tokens = {"mask": MASK, "stop": (EOS,), "pad": EOS, "suppressed": (MASK,)}
    made = generator("full", text=codec, tokens=tokens | {"expand": 58, "delete": 60})
    with pytest.raises(RequestError, match="spans that grow move their tokens"):
        made.infill("ab<mask:2>c", logprobs=1)
