import pytest


def test_a_prompt_is_continued(shared):
    response = shared.complete(max_tokens=5)
    assert response.status_code == 200
    body = response.json()
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
    assert usage["prompt_tokens"] == 3
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == 8
    assert usage["forwards"] > 0
    assert usage["tokens_per_forward"] == pytest.approx(5 / usage["forwards"], rel=1)
