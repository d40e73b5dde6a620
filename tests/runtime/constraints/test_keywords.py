import pytest

from dlmc_runtime.constraints.keywords import DESCRIBING, KEYWORDS, SUPPORTED, follow
from dlmc_runtime.errors import RequestError

ROOT = {"$defs": {"a/b~c": {"anyOf": [{"const": 1}, True]}}, "title": "t"}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", ROOT),
        ("#/$defs/a~1b~0c/anyOf/0", {"const": 1}),
        ("#/$defs/a~1b~0c/anyOf/1", True),
    ],
)
def test_a_reference_leads_to_a_schema(reference, found):
    assert follow(ROOT, reference, "$") == found


@pytest.mark.parametrize(
    "reference", ["#/title", "#/$defs/x", "#/$defs/a~1b~0c/anyOf/7", "other.json", "#anchor"]
)
def test_a_reference_that_does_not_is_refused_where_it_stands(reference):
    with pytest.raises(RequestError, match=r"\$\.x"):
        follow(ROOT, reference, "$.x")


def test_a_keyword_either_describes_or_is_enforced():
    assert not DESCRIBING & SUPPORTED


def test_the_page_lists_what_is_enforced(repository):
    page = (repository / "docs" / "structured-output.md").read_text(encoding="utf-8")
    rows = [
        f"| {kind} | `{keyword}` | {note} |"
        for kind, group in KEYWORDS.items()
        for keyword, note in group.items()
    ]
    begin, end = page.index("<!-- keywords -->"), page.index("<!-- /keywords -->")
    table = page[begin:end].splitlines()[3:]
    assert [line for line in table if line] == rows
