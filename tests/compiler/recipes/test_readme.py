from pathlib import Path

import pytest

from dlmc.recipes import catalog, find, list_recipes
from dlmc.recipes.readme import BEGIN, is_current, size, updated

SOUND = find("tiny-llada").read_text()


@pytest.mark.parametrize("folder", sorted({name.split("/")[0] for name in list_recipes()}))
def test_readme_tables_are_current(folder):
    assert is_current(catalog.root() / folder)


def test_a_readme_keeps_its_text_and_gets_a_new_table(tmp_path):
    (tmp_path / "tiny-llada.yaml").write_text(SOUND)
    assert not is_current(tmp_path)
    path: Path = tmp_path / "README.md"
    path.write_text("# Mine\n\nBefore.\n")
    path.write_text(updated(tmp_path) + "\nAfter.\n")
    assert is_current(tmp_path)
    path.write_text(path.read_text().replace("tiny-llada.yaml", "gone.yaml"))
    assert not is_current(tmp_path)
    assert updated(tmp_path).startswith(f"# Mine\n\nBefore.\n\n{BEGIN}")
    assert updated(tmp_path).endswith("\nAfter.\n")


@pytest.mark.parametrize(
    ("count", "text"), [(None, ""), (12, "12"), (1_275_520, "1.28 M"), (8_015_581_184, "8.02 B")]
)
def test_size(count, text):
    assert size(count) == text
