from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.serve.parsers.markers import Markers

TEXTS = st.text("ab<>", max_size=12)


def found(markers, chunks):
    """Return every piece of a text that arrives in chunks: clear text and markers in turn."""
    pieces, buffer = [], ""
    for index, chunk in enumerate(chunks):
        buffer += chunk
        last, marker = index + 1 == len(chunks), ""
        while marker is not None:
            clear, marker = markers.find(buffer, last=last)
            pieces += [buffer[:clear], f"[{marker}]" if marker else ""]
            buffer = buffer[clear + len(marker or "") :]
    assert buffer == ""
    return "".join(pieces)


def test_the_first_marker_counts_and_the_longest_that_begins_there():
    markers = Markers(["<a", "<ab>", "b>"])
    assert markers.find("x<ab>", last=False) == (1, "<ab>")
    assert markers.find("x<ab", last=False) == (1, None)
    assert markers.find("x<ab", last=True) == (1, "<a")
    assert markers.find("xyz", last=False) == (3, None)
    assert Markers([]).find("xyz<", last=False) == (4, None)


@given(st.sets(st.text("ab<>", min_size=1, max_size=4), max_size=4), st.lists(TEXTS, min_size=1))
def test_what_is_found_does_not_depend_on_where_a_text_is_cut(texts, chunks):
    markers = Markers(sorted(texts))
    assert found(markers, chunks) == found(markers, ["".join(chunks)])
