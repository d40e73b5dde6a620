import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.events import Result
from dlmc_runtime.infill import Hole
from dlmc_runtime.serve import slots
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.slots import Slot

GROWS = {
    "tokens": {"mask": 63, "stop": (60,), "pad": 61, "suppressed": (63,), "expand": 1, "delete": 2}
}


def result(tokens, spans=()):
    return Result("", tuple(tokens), 1, 1, "stop", 0.1, 1.0, spans=tuple(spans))


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("Dear <slot name=who max=8/>,", ("Dear ", Slot("who", 8), ",")),
        ('<slot max="8" name=\'who\' />', (Slot("who", 8),)),
        ("<slot name=a/><slot\nname=b-2 max=1/>", (Slot("a", 16), Slot("b-2", 1))),
        ("a < <slots/> <slot name=x/> &lt; &amp;", ("a < <slots/> ", Slot("x", 16), " &lt; &amp;")),
        ("&lt;slot name=y/> <slot name=x/>", ("<slot name=y/> ", Slot("x", 16))),
        ("&amp;lt;slot <slot name=x/>&lt;/slot>", ("&lt;slot ", Slot("x", 16), "</slot>")),
    ],
)  # fmt: skip
def test_a_template_is_read(template, parts):
    assert slots.parse(template).parts == parts


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("Dear you", "has no slot"),
        ("<slot name=a>x</slot>", "<slot name=a> is no slot"),
        ("<slot name=a", "<slot name=a is no slot"),
        ("<slot/>", "has no name"),
        ("<slot name=/>", "is no slot"),
        ("<slot name=9/>", "'9'"),
        ("<slot name='a b'/>", "'a b'"),
        ("<slot name=a max=0/>", "max is no number"),
        ("<slot name=a max=9999/>", "max is no number"),
        ("<slot name=a max=²/>", "max is no number"),
        ("<slot name=a max=-1/>", "max is no number"),
        ("<slot name=a name=b/>", "says name twice"),
        ("<slot name=a pattern=[0-9]/>", "pattern is not supported"),
        ("<slot name=a/> <slot name=a/>", "two slots are called a"),
        ("<slot name='a/>", "is no slot"),
        ("<slot a/>", "is no slot"),
        ("<SLOT name=a/>", "is no slot"),
        ("< slot name=a/>", "is no slot"),
        ("</slot>", "is no slot"),
        ("".join(f"<slot name=a{i}/>" for i in range(65)), "too many slots"),
    ],
)
def test_what_is_no_template_is_refused(template, said):
    with pytest.raises(FieldError) as caught:
        slots.parse(template)
    assert said in str(caught.value)
    assert caught.value.param == "template"


@given(st.text())
def test_any_text_can_be_written(text):
    escaped = slots._ESCAPED.sub(lambda found: f"&amp;{found[0][1:]}", text)
    escaped = slots._TAG.sub(lambda found: f"&lt;{found[0][1:]}", escaped)
    assert slots.parse(f"{escaped}\n<slot name=a/>").parts == (f"{text}\n", Slot("a", 16))


def test_spans_of_fixed_length_end_at_a_stop_or_padding(manifest, codec):
    made = manifest("full")
    read = slots.parse("to <slot name=a max=4/>, <slot name=b max=2/>!")
    assert read.template(made) == ["to ", Hole(4), ", ", Hole(2), "!"]
    ids = [*codec.encode("hi"), 60, *codec.encode("x"), *codec.encode("b"), 61]
    texts = read.texts(result(ids), made, codec)
    assert texts == {"a": "hi", "b": "b"}
    assert read.filled(texts) == "to hi, b!"


def test_spans_that_grow_begin_short(manifest, codec):
    made = manifest("full", **GROWS)
    read = slots.parse("<slot name=a max=4/>, <slot name=b max=20/>")
    assert read.template(made) == [Hole(4), ", ", Hole(8)]
    assert read.length == 24
    assert read.texts(result([1, 2, 3], ["x", "yz"]), made, codec) == {"a": "x", "b": "yz"}


def test_a_prefix_a_middle_and_a_suffix_are_a_template():
    read = slots.combined(["", Slot("middle", 3), "end"])
    assert read.parts == (Slot("middle", 3), "end")
