import pytest

from dlmc_runtime import errors

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DlmcError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_says_what_and_what_to_do(kind):
    error = kind("plan.onnx is truncated", "build it again")
    assert str(error) == "plan.onnx is truncated: build it again"
    assert (error.message, error.hint) == ("plan.onnx is truncated", "build it again")


@pytest.mark.parametrize("kind", KINDS)
def test_a_hint_may_be_missing(kind):
    assert str(kind("plan.onnx is truncated")) == "plan.onnx is truncated"


@pytest.mark.parametrize("kind", KINDS)
def test_only_usage_errors_exit_with_2(kind):
    assert kind("x").exit_code == (2 if kind is errors.UsageError else 1)


def test_all_kinds_are_caught_as_one():
    assert len(KINDS) > 1
    assert all(issubclass(kind, errors.DlmcError) for kind in KINDS)
