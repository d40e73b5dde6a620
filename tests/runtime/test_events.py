import pytest

from dlmc_runtime.events import Result


def result(**changes):
    fields = {
        "text": "abc",
        "tokens": (1, 2, 3),
        "prompt_tokens": 4,
        "forwards": 2,
        "finish_reason": "length",
        "seconds": 0.5,
        "tokens_per_forward": 1.5,
    }
    return Result(**{**fields, **changes})


def test_speed_counts_generated_tokens_only():
    assert result().tokens_per_second == 6.0


def test_speed_of_nothing_is_nothing():
    assert result(seconds=0.0).tokens_per_second == 0.0


def test_a_result_does_not_change():
    with pytest.raises(AttributeError):
        result().text = "x"
