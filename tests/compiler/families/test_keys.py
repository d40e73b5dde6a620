import math

import pytest

from dlmc.families.keys import LARGEST_SIZE, Keys
from dlmc_runtime.errors import CheckpointError


@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True, [4], LARGEST_SIZE + 1])
def test_integer_refuses(value: object):
    with pytest.raises(CheckpointError, match=r"config.json: 'n' is .*whole number from 1 to"):
        Keys({"n": value}).integer("n")


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**400, "1", True, None])
def test_number_refuses(value: object):
    with pytest.raises(CheckpointError, match=r"config\.json: 'x' is"):
        Keys({"x": value}).number("x")


@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_flag_refuses(value: object):
    with pytest.raises(CheckpointError, match=r"'f' is .*true or false"):
        Keys({"f": value}).flag("f")


@pytest.mark.parametrize("value", [-1, 8, 1.0, True, "1", [1, 8], [[1]], {}])
def test_tokens_refuse(value: object):
    with pytest.raises(CheckpointError, match=r"'t' is .*token ids from 0 to 7"):
        Keys({"t": value}).tokens("t", 8)


def test_one_token_is_not_several():
    with pytest.raises(CheckpointError, match="one token id"):
        Keys({"t": [1, 2]}).token("t", 8)


def test_absent_and_null_are_the_same():
    for keys in (Keys({}), Keys({"k": None})):
        assert keys.integer("k", default=3) == 3
        assert keys.flag("k", default=True) is True
        assert keys.tokens("k", 8) == ()
        assert keys.token("k", 8) is None
        with pytest.raises(CheckpointError, match="'k' is missing: add a whole number"):
            keys.integer("k")


def test_values_are_read():
    keys = Keys({"n": 7, "x": 1000000, "f": False, "one": 3, "many": [3, 2, 3]})
    assert keys.integer("n") == 7
    assert keys.number("x") == 1e6
    assert keys.flag("f") is False
    assert keys.tokens("one", 8) == (3,)
    assert keys.tokens("many", 8) == (3, 2)


def test_long_values_are_shortened():
    with pytest.raises(CheckpointError) as caught:
        Keys({"n": "x" * 10_000}).integer("n")
    assert len(str(caught.value)) < 200


def test_true_is_not_one():
    with pytest.raises(CheckpointError, match="'k' is true"):
        Keys({"k": True}).require({"k": (1, None)})


def test_errors_name_the_file():
    with pytest.raises(CheckpointError, match=r"^generation_config\.json: 't' is 9"):
        Keys({"t": 9}, "generation_config.json").token("t", 8)


@pytest.mark.parametrize(
    ("stated", "expected"), [(["B"], "B"), (["C"], "A"), ([], "A"), (None, "A"), ("B", "A")]
)
def test_architecture(stated: object, expected: str):
    assert Keys({"architectures": stated}).architecture(("A", "B")) == expected
