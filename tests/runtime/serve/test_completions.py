import re
from dataclasses import replace

import pytest
from pydantic import ValidationError

from dlmc_runtime.events import TokenLogprob
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.serve.completions import CompletionBody, _top
from dlmc_runtime.serve.settings import Settings


def texts(response):
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def test_a_prompt_is_continued(shared):
    body = shared.complete(max_tokens=5).json()
    assert body["object"] == "text_completion"
    assert body["model"] == "test"
    assert body["id"].startswith("cmpl-")
    assert body["choices"] == [
        {
            "text": "defgh",
            "index": 0,
            "logprobs": None,
            "finish_reason": "length",
            "finish_detail": "length",
        }
    ]
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 5, 8)
    assert usage["forwards"] > 0


def test_prompts_are_texts_or_ids_one_or_several(shared, codec):
    ids = codec.encode("abc")
    assert texts(shared.complete(prompt="ab", max_tokens=2)) == ["cd"]
    assert texts(shared.complete(prompt=["ab", "a"], max_tokens=2)) == ["cd", "bc"]
    assert texts(shared.complete(prompt=ids, max_tokens=2)) == ["de"]
    assert texts(shared.complete(prompt=[ids, ids[:1]], max_tokens=2)) == ["de", "bc"]


def test_n_answers_a_prompt_in_the_order_of_prompts(shared):
    body = shared.complete(prompt=["ab", "abcd"], n=2, max_tokens=1).json()
    assert [choice["text"] for choice in body["choices"]] == ["c", "c", "e", "e"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 2 + 4
    assert body["usage"]["completion_tokens"] == 4


def test_stop_strings_end_an_answer(shared):
    body = shared.complete(max_tokens=20, stop=["hi", "x"]).json()
    assert body["choices"][0]["text"] == "defg"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert texts(shared.complete(max_tokens=20, stop="f")) == ["de"]


def test_without_max_tokens_the_models_default_counts(shared):
    assert shared.complete().json()["usage"]["completion_tokens"] == 16
    long = "abcd" * 10
    body = shared.complete(prompt=long).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 52 - 4 - len(long)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": "a" * 60}, "prompt"),
        ({"max_tokens": 50}, "max_tokens"),
        ({"prompt": [99]}, "prompt"),
        ({"prompt": "a", "template": "b"}, "prompt"),
        ({"diffusing": True}, "diffusing"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logprobs": 9}, "logprobs"),
        ({"prompt": ["a"] * 20, "n": 10}, "n"),
        ({"diffusion": {"gamma": 1.0}}, "diffusion.gamma"),
        ({"diffusion": {"block_length": 7}}, "diffusion.block_length"),
        ({"diffusion": {"sampler": "renoise"}}, "diffusion.sampler"),
        ({"diffusion": {"threshold": 1.5}}, "diffusion.threshold"),
        ({"top_k": 9}, "top_k"),
        ({"temperature": 0.0001}, "temperature"),
        ({"temperature": 1.0, "diffusion": {"sampler": "credit"}}, "temperature"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(shared, change, param):
    body = {"model": "test", "prompt": "abc", **change}
    assert shared.refusal("/v1/completions", body)[:2] == (400, param)


def test_too_long_a_prompt_has_a_code_that_clients_know(shared):
    error = shared.complete(prompt="a" * 60).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_temperature_zero_may_be_said_where_there_is_no_other(shared):
    credit = {"sampler": "credit"}
    assert texts(shared.complete(temperature=0.0, diffusion=credit, max_tokens=1)) == ["d"]


def test_options_reach_the_sampler(serving, random_model):
    running = serving(random_model())
    config = SamplerConfig("low_confidence_dynamic", threshold=0.5, temperature=0.7, top_k=3)
    generator = running.served.generator
    prompts = ["hello", "abc"]
    for seed, prompt in enumerate(prompts):
        alone = generator.generate(prompt, max_new_tokens=12, sampler=config, seed=seed)
        response = running.complete(
            prompt=prompt,
            max_tokens=12,
            seed=seed,
            temperature=0.7,
            top_k=3,
            diffusion={"threshold": 0.5},
        )
        assert texts(response) == [alone.text]


def test_choice_i_uses_the_seed_plus_i(serving, random_model):
    running = serving(random_model())
    same = {"prompt": "hello", "temperature": 2.0, "max_tokens": 12}
    several = texts(running.complete(**same, seed=5, n=3))
    assert several == [texts(running.complete(**same, seed=5 + i))[0] for i in range(3)]
    assert len(set(several)) > 1


def test_without_a_seed_answers_differ(serving, random_model):
    running = serving(random_model())
    same = {"prompt": "hello", "temperature": 2.0, "max_tokens": 16}
    assert len({texts(running.complete(**same))[0] for _ in range(4)}) > 1


def test_log_probabilities_have_openais_shape(serving, random_model):
    running = serving(random_model())
    generator = running.served.generator
    alone = generator.generate("hello", max_new_tokens=6, logprobs=2)
    said = running.complete(prompt="hello", max_tokens=6, logprobs=2).json()["choices"][0]
    found = said["logprobs"]
    assert found["tokens"] == [generator.text.token(token) for token in alone.tokens]
    assert found["token_logprobs"] == [one.logprob for one in alone.logprobs]
    assert [len(top) in (2, 3) for top in found["top_logprobs"]] == [True] * 6
    none = running.complete(prompt="hello", max_tokens=6, logprobs=0).json()["choices"][0]
    assert [len(top) for top in none["logprobs"]["top_logprobs"]] == [1] * 6


def test_offsets_add_up_the_lengths_of_tokens(serving, letters):
    generator = letters()
    generator.engine.engine.script[3:6] = [59, *generator.text.encode("ab")]
    found = serving(generator).complete(max_tokens=3, logprobs=0).json()["choices"][0]["logprobs"]
    assert found["tokens"] == ["<59>", "a", "b"]
    assert found["text_offset"] == [0, 4, 5]


def test_of_alternatives_with_the_same_text_the_likelier_one_counts(shared, codec):
    halves = codec.encode("é🙂")  # none of them is a character
    alternatives = tuple(zip(halves[:2], (-0.5, -1.0), strict=True))
    told = TokenLogprob(halves[2], -3.0, 1, alternatives)
    assert _top(shared.served, told) == {"\ufffd": -0.5}


def test_a_stream_is_the_answer_in_pieces(shared, read_events):
    response = shared.complete(max_tokens=10, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = read_events(response)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "defghijklm"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [
        *[None] * (len(chunks) - 1),
        "length",
    ]
    assert {chunk["id"] for chunk in [*chunks, usage]} == {usage["id"]}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 10


def test_a_stream_without_usage_says_none(shared, read_events):
    *chunks, _ = read_events(shared.complete(max_tokens=3, stream=True))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_streams_of_several_answers_are_told_apart_by_index(shared, read_events):
    *chunks, _ = read_events(shared.complete(prompt=["ab", "abcd"], max_tokens=6, stream=True))
    found = {0: "", 1: ""}
    for chunk in chunks:
        found[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert found == {0: "cdefgh", 1: "efghij"}


def test_a_diffusing_stream_has_canvases_that_other_clients_can_ignore(shared, read_events):
    *chunks, _ = read_events(shared.complete(max_tokens=6, stream=True, diffusing=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "defghi"
    canvases = [chunk["diffusion"] for chunk in chunks if "diffusion" in chunk]
    assert canvases
    for canvas in canvases:
        assert len(canvas["tokens"]) == 6
        masked = [token["state"] == "masked" for token in canvas["tokens"]]
        assert canvas["text"].count("…") == sum(masked)
        inside = range(max(canvas["start"], 0), canvas["end"])
        sure = [token["confidence"] is not None for token in canvas["tokens"]]
        assert sure == [index in inside for index in range(6)]
        assert canvas["tokens_per_forward"] == masked.count(False) / canvas["forward"]
    assert canvases[-1]["text"] == "defghi"


def test_logprobs_of_a_stream_come_with_its_last_piece(serving, random_model, read_events):
    running = serving(random_model())
    same = {"prompt": "hello", "max_tokens": 6, "logprobs": 1}
    whole = running.complete(**same).json()["choices"][0]["logprobs"]
    *chunks, _ = read_events(running.complete(**same, stream=True))
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert found[-1] == whole
    assert not any(found[:-1])


def test_an_error_ends_a_stream(serving, letters, read_events, run_out):
    running = serving(letters())
    running.engine.close_gate()
    running.engine.let(2)
    try:
        with running.client.stream(
            "POST",
            "/v1/completions",
            json={"model": "test", "prompt": "abc", "max_tokens": 20, "stream": True},
        ) as response:
            assert running.engine.waiting.wait(60)
            run_out(running.served)
            running.engine.open_gate()
            response.read()
    finally:
        running.engine.open_gate()
    *_, last = read_events(response)
    assert last["error"]["code"] == "deadline_exceeded"


def test_a_request_that_takes_too_long_is_a_504(serving, letters):
    running = serving(letters(), Settings(request_seconds=1e-6))
    status, param, message = running.refusal(
        "/v1/completions", {"model": "test", "prompt": "abc", "max_tokens": 20}
    )
    assert (status, param) == (504, None)
    assert "within its time" in message


def test_a_failing_engine_is_a_503_and_the_next_request_is_served(serving, letters):
    running = serving(letters())
    engine = running.engine
    healthy = engine.engine

    class Broken:
        def __getattr__(self, name):
            return getattr(healthy, name)

        def forward(self, inputs, cache, stores):
            outputs = healthy.forward(inputs, cache, stores)
            nan = outputs.top_logits * float("nan")
            return replace(outputs, top_logits=nan, logsumexp=outputs.logsumexp * float("nan"))

    engine.engine = Broken()
    status, _, message = running.refusal("/v1/completions", {"model": "test", "prompt": "abc"})
    assert status == 503
    assert "NaN" in message
    engine.engine = healthy
    assert texts(running.complete(max_tokens=2)) == ["de"]


def test_the_steps_that_cut_a_block_short_are_told(shared):
    choice = shared.complete(max_tokens=8, diffusion={"sampler": "dus", "steps": 1}).json()
    assert choice["choices"][0]["finish_detail"] == "steps"
    assert choice["choices"][0]["finish_reason"] == "length"


def test_every_answer_has_a_length_of_its_own(shared):
    prompts = ["abc", "abcd" * 10]  # the context leaves the second one less than the default
    cut = {"sampler": "dus", "steps": 1}
    choices = shared.complete(prompt=prompts, diffusion=cut).json()["choices"]
    assert [len(choice["text"]) for choice in choices] == [16, 8]
    assert [choice["finish_detail"] for choice in choices] == ["steps"] * 2
    assert [choice["finish_reason"] for choice in choices] == ["length"] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_matches_its_expression(serving, random_model, read_events, stream):
    running = serving(random_model())
    asked = {"type": "regex", "pattern": "(ab|cd){3}[0-9]"}
    response = running.complete(max_tokens=12, response_format=asked, stream=stream)
    assert response.status_code == 200, response.text
    chunks = read_events(response)[:-1] if stream else [response.json()]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert re.fullmatch("(ab|cd){3}[0-9]", text)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "change",
    [
        {"response_format": {"type": "regex", "pattern": "("}},
        {"response_format": {"type": "regex", "pattern": "a{40}"}, "max_tokens": 5},
        {"response_format": {"type": "regex", "pattern": "a+"}, "stop": "b"},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "banana"}},
            }
        },
    ],
)
def test_a_format_that_cannot_be_kept_is_refused(shared, change):
    body = {"model": "test", "prompt": "abc", **change}
    assert shared.refusal("/v1/completions", body)[:2] == (400, "response_format")


def test_a_format_goes_without_a_template(shared):
    body = {"model": "test", "template": "a", "response_format": {"type": "json_object"}}
    assert shared.refusal("/v1/completions", body)[:2] == (400, "response_format")


@pytest.mark.parametrize("prompt", [[1, "a"], ["a", 1], [-1], [None], [[1], "a"], [[]], [{}]])
def test_a_long_prompt_of_the_wrong_kind_is_looked_at_once(prompt):
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate({"model": "test", "prompt": prompt * 100})
    assert caught.value.error_count() < 10
