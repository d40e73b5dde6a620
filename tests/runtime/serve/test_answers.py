import pytest

from dlmc_runtime.events import Result
from dlmc_runtime.serve import answers


def result(tokens=4, forwards=2, rate=2.0, reason="length", prompt=3, cached=0):
    return Result(
        text="t" * tokens,
        tokens=(1,) * tokens,
        prompt_tokens=prompt,
        forwards=forwards,
        finish_reason=reason,
        seconds=1.0,
        tokens_per_forward=rate,
        cached_tokens=cached,
    )


def test_usage_of_one_answer_is_the_results():
    usage = answers.usage([result(tokens=6, forwards=5, rate=2.0, cached=2)])
    assert usage.model_dump() == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2},
        "forwards": 5,
        "tokens_per_forward": 2.0,
    }


def test_several_answers_share_their_prompt():
    usage = answers.usage(
        [result(), result(cached=2), result(prompt=5, cached=4), result(prompt=5)], choices=2
    )
    assert usage.prompt_tokens == 3 + 5
    assert usage.prompt_tokens_details.cached_tokens == 0 + 4
    assert usage.completion_tokens == 16
    assert usage.forwards == 8


def test_rates_add_up_by_forwards():
    usage = answers.usage([result(tokens=4, rate=4.0), result(tokens=4, rate=1.0)])
    assert usage.tokens_per_forward == pytest.approx(8 / 5)


def test_an_empty_answer_has_no_rate():
    assert answers.usage([result(tokens=0, rate=0.0)]).tokens_per_forward == 0.0


@pytest.mark.parametrize(
    ("reason", "tokens", "expected"),
    [
        ("stop", 2, "stop"),
        ("length", 4, "length"),
        ("steps", 4, "length"),
        ("steps", 2, "stop"),
    ],
)
def test_reasons_are_those_that_clients_know(reason, tokens, expected):
    assert answers.finish_reason(result(tokens=tokens, reason=reason), 4) == expected


def test_logprobs_are_finite():
    assert answers.logprob(float("-inf")) == -9999.0
    assert answers.logprob(-0.5) == -0.5


def test_optional_fields_are_left_out_at_any_depth():
    class Inner(answers.Answer):
        a: int | None = None
        b: int | None = None

    class Outer(answers.Answer):
        inner: list[Inner]
        a: int | None = None

    assert answers.dump(Outer(inner=[Inner(b=1), Inner()]), "a") == {
        "inner": [{"b": 1}, {"b": None}]
    }


def test_identifiers_differ():
    assert answers.identifier("cmpl") != answers.identifier("cmpl")
