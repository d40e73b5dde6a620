import pytest

from dlmc.recipes.notation import parse
from dlmc_runtime.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"a: 1e-5", 1e-5),
        (b"a: -2E+3", -2000.0),
        (b"a: 1.5", 1.5),
        (b"a: '1e-5'", "1e-5"),
        (b"a: null", None),
        (b"a: [1, yes]", [1, True]),
    ],
)
def test_plain_data(text, value):
    assert parse(text, "here.yaml") == {"a": value}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"name: a\nname: b\n", r"here.yaml line 2: name is stated twice"),
        (b"config: {a: 1, a: 2}\n", r"here.yaml line 1: a is stated twice"),
        (b"a: &x [1]\nb: *x\n", "line 2: references are not supported"),
        (b"a: !!python/object/apply:os.system [ls]\n", "line 1: could not determine"),
        (b"a: [\n", "line 2: "),
        (b"\xff", "is not YAML"),
        (b"[" * 5000, "is not YAML"),
        (b"{? [a] : b}", "found unhashable key"),
    ],
)
def test_what_is_no_plain_data_is_refused(text, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse(text, "here.yaml")
    assert str(caught.value).startswith("here.yaml")
    assert "\n" not in str(caught.value)
