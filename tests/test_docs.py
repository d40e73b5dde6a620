"""What the documentation derives from the sources is current, and its links lead somewhere."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "artifacts/*.md", "benchmarks/*.md", "docs/**/*.md", "recipes/**/*.md")
    for path in ROOT.glob(pattern)
)
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")


@pytest.fixture(scope="module")
def generate():
    """The program that writes the derived parts, as a module."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "generate.py")))


@pytest.mark.parametrize("name", ["manifest.schema.json", "engine.schema.json"])
def test_the_published_schema_is_current(generate, name):
    published = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert published == generate.schema_text(generate.SCHEMAS[name]), "run `make schema`"


def test_the_map_of_the_code_is_current(generate):
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert page == generate.with_map(page), "run `make map`"


def test_the_table_of_samplers_is_current(generate):
    page = (ROOT / "docs" / "samplers.md").read_text(encoding="utf-8")
    assert page == generate.with_samplers(page), "run `make samplers`"


def test_the_tables_of_families_are_current(generate):
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert page == generate.with_families(page), "run `make families`"


def test_every_source_file_says_what_it_is(generate):
    silent = [path for path in generate.sources() if not generate.summary(path)]
    assert not [path for path in silent if path.read_text(encoding="utf-8").strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_decisions_are_numbered_and_listed():
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert not [name for name in pages if f"({name})" not in index]
