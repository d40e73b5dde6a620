import json

import pytest
from hypothesis import given, strategies

from dlmc_runtime.errors import UsageError
from dlmc_runtime.package.triton_call import ENDPOINTS, MAX_BYTES, read_call

NAME = "tiny"


def fields(inputs, parameters=None):
    return json.loads(read_call(inputs, parameters or {}, NAME).body)


def test_a_prompt_with_parameters_is_a_completion():
    call = read_call({"text_input": "grün".encode()}, {"max_tokens": 3, "stream": True}, NAME)
    assert call.path == "/v1/completions"
    expected = {"model": NAME, "prompt": "grün", "max_tokens": 3, "stream": True}
    assert json.loads(call.body) == expected


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"prompt": "a"}, "/v1/completions"),
        ({"messages": []}, "/v1/chat/completions"),
        ({"template": "a"}, "/v1/completions"),
    ],
)
def test_the_body_says_which_endpoint_is_meant(body, path):
    assert read_call({"request": json.dumps(body).encode()}, {}, NAME).path == path


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("prefix", ["", "/v1/"])
def test_an_endpoint_may_be_named(endpoint, prefix):
    inputs = {"request": b"{}", "endpoint": f"{prefix}{endpoint}".encode()}
    assert read_call(inputs, {}, NAME).path == f"/v1/{endpoint}"


def test_no_other_path_is_reached():
    for endpoint in (b"models", b"../metrics", b"health", b"\xff", b"completions/../x"):
        with pytest.raises(UsageError):
            read_call({"request": b"{}", "endpoint": endpoint}, {}, NAME)


BODIES = strategies.dictionaries(
    strategies.sampled_from(("prompt", "messages", "model", "n")), strategies.integers(), max_size=4
)


@given(BODIES, strategies.sampled_from((None, 1)))
def test_a_body_without_a_model_gets_one(body, indent):
    text = f" \n{json.dumps(body, indent=indent)}"
    assert fields({"request": text.encode()}) == {"model": NAME, **body}


@pytest.mark.parametrize("text", [b"", b"nope", b"[1]", b'"x"', b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_body_goes_on_as_it_is(text):
    """The endpoint says what is wrong with it, as it says to everybody."""
    assert read_call({"request": text}, {}, NAME).body == text


def test_a_key_given_twice_stays_so():
    body = read_call({"request": b'{"n": 1, "n": 2}'}, {}, NAME).body
    assert body == b'{"model":"tiny","n": 1, "n": 2}'


@pytest.mark.parametrize("inputs", [{}, {"request": b"{}", "text_input": b"a"}])
def test_there_is_one_request(inputs):
    with pytest.raises(UsageError, match="give one of them"):
        read_call(inputs, {}, NAME)


def test_a_field_beside_the_body_is_not_ignored():
    with pytest.raises(UsageError, match="'max_tokens' is given beside request"):
        read_call({"request": b"{}"}, {"max_tokens": 3}, NAME)


def test_a_prompt_is_given_once():
    with pytest.raises(UsageError, match="prompt is given beside text_input"):
        read_call({"text_input": b"a"}, {"prompt": "b"}, NAME)


@pytest.mark.parametrize("name", ["request", "text_input"])
def test_a_request_is_bounded_before_it_is_read(name):
    with pytest.raises(UsageError, match="larger than"):
        read_call({name: b" " * (MAX_BYTES + 1)}, {}, NAME)


def test_a_prompt_is_text():
    with pytest.raises(UsageError, match="text_input is not UTF-8 at byte 1"):
        read_call({"text_input": b"a\xff"}, {}, NAME)
