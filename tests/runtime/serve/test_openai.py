"""The official client of OpenAI, against a real server."""

import threading

import openai
import pytest
from openai import OpenAI

from dlmc_runtime.serve.settings import Settings

KEY = "a-key-of-ours"


@pytest.fixture(scope="module")
def opened(live_letters):
    with OpenAI(base_url=f"{live_letters.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def live_letters(live_for_module, letters):
    return live_for_module(letters(), Settings(api_keys=(KEY,)))


def test_a_completion(opened):
    answer = opened.completions.create(model="test", prompt="abc", max_tokens=5)
    assert answer.choices[0].text == "defgh"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 8
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_stream(opened):
    stream = opened.completions.create(
        model="test",
        prompt="abc",
        max_tokens=10,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [*stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "defghijklm"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 10


def test_a_diffusing_stream_is_a_stream_to_a_client_that_knows_no_diffusion(opened):
    stream = opened.completions.create(
        model="test", prompt="abc", max_tokens=10, stream=True, extra_body={"diffusing": True}
    )
    chunks = [*stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "defghijklm"
    assert any(chunk.model_extra and "diffusion" in chunk.model_extra for chunk in chunks)


def test_log_probabilities(opened):
    answer = opened.completions.create(model="test", prompt="abc", max_tokens=3, logprobs=1)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens == ["d", "e", "f"]
    assert found.text_offset == [0, 1, 2]


def test_options_of_the_sampler(opened):
    answer = opened.completions.create(
        model="test",
        prompt="abc",
        max_tokens=5,
        seed=3,
        extra_body={"diffusion": {"sampler": "sequential"}},
    )
    assert answer.usage is not None
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["forwards"] >= 5


def test_models(opened):
    assert [model.id for model in opened.models.list()] == ["test"]
    assert opened.models.retrieve("test").owned_by == "dlmc"


def test_errors_are_those_the_client_knows(opened):
    with pytest.raises(openai.NotFoundError) as missing:
        opened.completions.create(model="other", prompt="abc")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        opened.completions.create(model="test", prompt="abc", frequency_penalty=1.0)
    assert wrong.value.param == "frequency_penalty"
    with pytest.raises(openai.AuthenticationError):
        opened.with_options(api_key="another-key").models.list()


def test_an_error_in_a_stream_is_raised(live, letters, run_out):
    running = live(letters())
    engine = running.engine
    engine.close_gate()

    def end_the_forward():
        assert engine.waiting.wait(60)
        run_out(running.served)  # in its middle
        engine.open_gate()

    threading.Thread(target=end_the_forward).start()
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="test", prompt="abc", stream=True)
        with pytest.raises(openai.APIError, match="was not done within"):
            list(stream)
