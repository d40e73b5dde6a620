import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from dlmc_runtime.errors import (
    DeadlineError,
    DlmcError,
    EngineError,
    OverloadError,
    RequestError,
    UsageError,
)
from dlmc_runtime.serve import errors
from dlmc_runtime.serve.errors import FieldError, blame


@pytest.fixture
def raising():
    """Return what an application says that raises an error."""

    def say(error):
        app = FastAPI()
        errors.install(app)

        @app.get("/")
        async def fail():
            raise error

        return TestClient(app, raise_server_exceptions=False).get("/")

    return say


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("no", "go"), 400, "invalid_request_error", None),
        (UsageError("no", "go"), 400, "invalid_request_error", None),
        (DlmcError("no", "go"), 400, "invalid_request_error", None),
        (OverloadError("no", "go"), 429, "rate_limit_error", "overloaded"),
        (DeadlineError("no", "go"), 504, "timeout_error", "deadline_exceeded"),
        (EngineError("no", "go"), 503, "server_error", "engine_error"),
    ],
)
def test_every_kind_of_error_has_a_status(raising, error, status, kind, code):
    response = raising(error)
    assert response.status_code == status
    expected = {"message": "no: go", "type": kind, "param": None, "code": code}
    assert response.json() == {"error": expected}


def test_an_overload_says_when_to_come_again(raising):
    assert raising(OverloadError("no", retry_after=7.4)).headers["retry-after"] == "7"
    assert raising(OverloadError("no", retry_after=0.1)).headers["retry-after"] == "1"
    assert raising(EngineError("no")).headers["retry-after"] == "1"


def test_a_server_that_ends_is_not_overloaded():
    status, said, headers = errors.describe(OverloadError("no", retry_after=5.0), draining=True)
    assert (status, said["error"]["code"]) == (503, "draining")
    assert headers == {"Retry-After": "5"}


def test_a_field_is_named(raising):
    response = raising(FieldError("model", "no", status=404, code="model_not_found"))
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "model"
    assert response.json()["error"]["code"] == "model_not_found"


def test_a_defect_keeps_its_insides_to_itself(raising):
    response = raising(RuntimeError("secret path"))
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["type"] == "server_error"


def test_blame_names_the_field_and_keeps_a_nearer_one():
    with pytest.raises(FieldError, match="no: go") as caught, blame("prompt"):
        raise RequestError("no", "go")
    assert caught.value.param == "prompt"
    with pytest.raises(FieldError) as caught, blame("prompt"), blame("stop"):
        raise UsageError("no")
    assert caught.value.param == "stop"
    with pytest.raises(OverloadError), blame("prompt"):
        raise OverloadError("no")


def test_unknown_paths_and_methods_have_the_same_form(shared):
    missing = shared.client.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "there is no /v1/nothing"
    wrong = shared.client.get("/v1/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["message"] == "/v1/completions does not take GET"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported here: leave it out"),
        ({"suffix": "x"}, "suffix", "/v1/fim/completions"),
        ({"messages": []}, "messages", "/v1/chat/completions"),
        ({"response_format": "json"}, "response_format", "must be an object"),
        ({"response_format": {"type": "xml"}}, "response_format", "expected tags"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "response_format.json_schema.name is missing",
        ),
        ({"response_format": {"type": "regex"}}, "response_format.pattern", "is missing"),
        ({"stream_options": {"x": 1}}, "stream_options.x", "not supported"),
        ({"max_tokens": "5"}, "max_tokens", "integer"),
        ({"max_tokens": True}, "max_tokens", "integer"),
        ({"max_tokens": 0}, "max_tokens", "greater"),
        ({"temperature": -1}, "temperature", "greater"),
        ({"stop": [""]}, "stop.0", "is empty"),
        ({"prompt": {}}, "prompt", "valid"),
        ({"prompt": [1, "a"]}, "prompt.1", "valid"),
        ({"stream": 1}, "stream", "boolean"),
        ({"diffusion": {"sampler": "best"}}, "diffusion.sampler", "or 'levenshtein'"),
        ({"diffusion": {"temperature": 1.0}}, "diffusion.temperature", "not supported"),
        ({"reasoning_effort": "max"}, "reasoning_effort", "should be"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(shared, change, param, words):
    body = {"model": "test", "prompt": "abc", **change}
    status, named, message = shared.refusal("/v1/completions", body)
    assert (status, named) == (400, param)
    assert words in message


def test_a_missing_field_is_named(shared):
    status, named, message = shared.refusal("/v1/completions", {"prompt": "abc"})
    assert (status, named, message) == (
        400,
        "model",
        "model is missing: name one that /v1/models lists",
    )
