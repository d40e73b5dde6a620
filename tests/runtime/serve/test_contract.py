"""The server against its own description, and against bodies that nobody would describe."""

import json

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok

EXAMPLES = 10
FIELDS = ("model", "prompt", "stream", "n", "stop", "logprobs", "diffusion", "seed", "x")
# What no schema says: which options a sampler heeds, how long a context is, what excludes what.
UNSAID = ["positive_data_acceptance"]


@pytest.fixture(scope="module")
def url(live_for_module, letters):
    head = {"variant": "plain", "candidates": 1}  # as many as the scripted engine gives
    return live_for_module(letters(head=head)).url


@pytest.fixture(scope="module")
def client(url):
    with httpx.Client(base_url=url, timeout=60.0) as opened:
        yield opened


def test_every_answer_is_as_described(url):
    described = schemathesis.openapi.from_url(f"{url}/openapi.json")
    excluded = [CHECKS.get_one(name) for name in UNSAID]
    called = set()
    for found in described.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        called.add(operation.label)

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def call(case):
            case.call_and_validate(excluded_checks=excluded)

        call()
    assert "POST /v1/completions" in called


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["test", "abc", "\x00"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), json_values).map(
    lambda given: json.dumps({"model": "test", "prompt": "abc", **given}).encode()
)
damaged = st.tuples(bodies, st.integers(0, 200), st.binary(max_size=4)).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(content=bodies | damaged | st.binary(max_size=80))
def test_no_body_is_a_defect(client, content):
    headers = {"content-type": "application/json"}
    response = client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
