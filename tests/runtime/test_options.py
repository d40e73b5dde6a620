from typing import Any, cast

import numpy as np
import pytest

from dlmc_runtime.constraints import Constraint
from dlmc_runtime.errors import RequestError, UsageError
from dlmc_runtime.options import check_constraint, is_prompt, is_some_text, whole_number


class Shortest:
    shortest = 3


@pytest.mark.parametrize("prompt", ["text", "", [1, 2], (), np.array([3])])
def test_a_text_or_ids_are_one_prompt(prompt):
    assert is_prompt(prompt)


@pytest.mark.parametrize("prompts", [["a", "b"], [[1]], b"bytes", [True], 3])
def test_other_things_are_none(prompts):
    assert not is_prompt(prompts)


def test_an_empty_text_is_no_text_to_stop_at():
    assert is_some_text("a")
    assert not is_some_text("")
    assert not is_some_text(1)


@pytest.mark.parametrize("value", [True, 1.0, "2", 0, None])
def test_a_number_that_is_not_whole_or_too_small_is_refused_by_name(value):
    with pytest.raises(UsageError, match="seed is"):
        whole_number("seed", value, 1)


def test_a_whole_number_may_be_numpys():
    assert whole_number("seed", np.int64(4), 1) == 4


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"count": 2}, "has 3 tokens, the answer may have 2"),
        ({"stop": True}, "stop strings"),
        ({"ignore_eos": True}, "stop token"),
    ],
)
def test_what_a_constraint_rules_out_is_refused(given, problem):
    constraint = cast("Constraint", Shortest())  # all that is asked of it
    asked: dict[str, Any] = {"count": 3, "stop": False, "ignore_eos": False}
    check_constraint(constraint, **asked)
    with pytest.raises(RequestError, match=problem):
        check_constraint(constraint, **{**asked, **given})
