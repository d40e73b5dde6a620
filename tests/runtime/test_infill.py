import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import infill
from dlmc_runtime.errors import RequestError, UsageError
from dlmc_runtime.infill import Hole

MASK, EOS, BOS, EXPAND = 63, 60, 59, 58


def letters(text):
    return [ord(symbol) - ord("a") for symbol in text]


def test_a_text_is_split_at_its_holes():
    assert infill.parse("ab<mask:3>c<mask:12>") == ["ab", Hole(3), "c", Hole(12)]
    assert infill.parse("<mask:1><mask:2>") == [Hole(1), Hole(2)]
    assert infill.parse("a < mask : <mask> b") == ["a < mask : <mask> b"]


@pytest.mark.parametrize(
    "text",
    ["<mask:>", "<mask:0>", "<mask:-1>", "<mask:1.5>", "<mask:x>", "<mask:٣>", "<mask:9999999>"],
)
def test_an_impossible_length_is_refused(text):
    with pytest.raises(UsageError, match=r"length|hole of"):
        infill.parse(f"a{text}b")


def test_a_text_of_openings_is_read_at_once():
    text = "<mask:" * 200_000
    assert infill.parse(text) == [text]


@pytest.mark.parametrize("length", [0, -3, True, 1.0, "4", None, 1 << 21])
def test_a_hole_is_a_whole_number_of_tokens(length):
    with pytest.raises(UsageError, match="a hole of"):
        Hole(length)


@given(st.lists(st.text("ab<", max_size=4) | st.integers(1, 9), max_size=6))
def test_parsing_undoes_writing(parts):
    text = "".join(f"<mask:{part}>" if isinstance(part, int) else part for part in parts)
    back = [
        f"<mask:{part.length}>" if isinstance(part, Hole) else str(part)
        for part in infill.parse(text)
    ]
    assert "".join(back) == text


def test_holes_are_where_the_masks_are(manifest):
    found = infill.encode("ab<mask:2>c<mask:1>", manifest("full"), letters)
    assert found.ids == (0, 1, MASK, MASK, 2, MASK)
    assert found.holes == ((2, 4), (5, 6))


def test_parts_may_be_ids(manifest):
    found = infill.encode([[7, 8], Hole(2), "a", (9,)], manifest("full"), letters)
    assert found.ids == (7, 8, MASK, MASK, 0, 9)
    assert found.holes == ((2, 4),)


def test_a_mask_id_of_the_template_is_no_hole(manifest):
    found = infill.encode([[MASK], Hole(1)], manifest("full"), letters)
    assert (found.ids, found.holes) == ((MASK, MASK), ((1, 2),))


@pytest.mark.parametrize("template", ["", "abc", [], ["abc"], [[1, 2]]])
def test_a_template_without_a_hole_is_refused(manifest, template):
    with pytest.raises(UsageError, match="no hole"):
        infill.encode(template, manifest("full"), letters)


@pytest.mark.parametrize("template", [7, None, [7], [None], [[1, "a"]], [[True]], {"a": 1}])
def test_what_is_no_template_is_refused(manifest, template):
    with pytest.raises(UsageError, match="neither text nor a list of parts"):
        infill.encode(template, manifest("full"), letters)


@pytest.mark.parametrize("regime", ["block", "context"])
def test_a_model_that_does_not_see_the_suffix_is_refused_by_name(manifest, regime):
    with pytest.raises(RequestError, match="test cannot fill spans"):
        infill.encode("a<mask:1>b", manifest(regime), letters)


def test_a_shifted_model_needs_text_before_a_hole(manifest):
    made = manifest("full", shift=1)
    with pytest.raises(RequestError, match="from the one before it"):
        infill.encode("<mask:1>b", made, letters)
    assert infill.encode("b<mask:1>", made, letters).holes == ((1, 2),)


def test_growing_spans_stand_between_begin_and_end(manifest):
    tokens = {
        "mask": MASK,
        "stop": (EOS,),
        "pad": EOS,
        "bos": BOS,
        "suppressed": (MASK,),
        "expand": EXPAND,
        "delete": EOS,
    }
    made = manifest("full", shift=1, tokens=tokens)
    found = infill.encode("<mask:2>b", made, letters)
    assert (found.ids, found.holes) == ((BOS, MASK, MASK, 1, EOS), ((1, 3),))
