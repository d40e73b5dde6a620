import shutil

import pytest

from dlmc.recipes import catalog, list_recipes, load


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A catalog that may be changed, with one folder."""
    shutil.copytree(catalog.root() / "tiny", tmp_path / "recipes" / "tiny")
    monkeypatch.setattr(catalog, "root", lambda: tmp_path / "recipes")
    return tmp_path / "recipes"


def test_ls_lists_every_recipe(dlmc):
    out = dlmc("recipes", "ls").out
    assert all(name in out for name in list_recipes())
    names = [one["name"] for one in dlmc("recipes", "ls", "--json").json]
    assert tuple(names) == list_recipes()


def test_show_prints_the_file(dlmc):
    outcome = dlmc("recipes", "show", "tiny-sdar")
    assert outcome.out == catalog.find("tiny-sdar").read_text()
    assert dlmc("recipes", "show", "tiny-sdar", "--json").json["name"] == "tiny-sdar"


def test_cp_makes_a_recipe_that_loads_and_is_sound(dlmc, tmp_path):
    path = tmp_path / "mine.yaml"
    assert dlmc("recipes", "cp", "tiny-sdar", str(path)).out == f"{path}\n"
    assert load(path).name == "mine"
    assert dlmc("recipes", "check", str(path)).status == 0


def test_cp_into_a_folder_keeps_the_name(dlmc, tmp_path):
    dlmc("recipes", "cp", "tiny/tiny-sdar", str(tmp_path))
    assert (tmp_path / "tiny-sdar.yaml").read_text() == catalog.find("tiny-sdar").read_text()


def test_cp_replaces_nothing_unless_forced(dlmc, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("precious")
    outcome = dlmc("recipes", "cp", "tiny-sdar", str(path))
    assert outcome.status == 2
    assert "exists" in outcome.err
    assert path.read_text() == "precious"
    assert dlmc("recipes", "cp", "tiny-sdar", str(path), "--force").status == 0
    assert load(path).name == "mine"


def test_cp_wants_a_yaml_file(dlmc, tmp_path):
    outcome = dlmc("recipes", "cp", "tiny-sdar", str(tmp_path / "mine.txt"))
    assert outcome.status == 2
    assert not list(tmp_path.iterdir())


def test_check_passes(dlmc):
    outcome = dlmc("recipes", "check")
    assert (outcome.status, outcome.err) == (0, "")
    assert "tiny/README.md" in outcome.out


def test_check_finds_problems(dlmc, recipes):
    path = recipes / "tiny" / "tiny-sdar.yaml"
    path.write_text(path.read_text().replace("max_new_tokens: 64", "max_new_tokens: 6400"))
    outcome = dlmc("recipes", "check", "--json")
    assert outcome.status == 1
    assert outcome.json["tiny/tiny-sdar"] == ["max_new_tokens: 6400 exceeds the model's 512"]
    assert outcome.json["tiny/tiny-llada"] == []
    assert dlmc("recipes", "check", "tiny-llada").status == 0


def test_check_writes_the_tables(dlmc, recipes):
    path = recipes / "tiny" / "tiny-sdar.yaml"
    path.write_text(path.read_text().replace("threshold: 0.9", "threshold: 0.5"))
    outcome = dlmc("recipes", "check")
    assert outcome.status == 1
    assert "the table is not current" in outcome.out
    assert dlmc("recipes", "check", "--write").status == 0
    assert "threshold 0.5" in (recipes / "tiny" / "README.md").read_text()


def test_a_bare_group_prints_its_help(dlmc):
    outcome = dlmc("recipes")
    assert outcome.status == 0
    assert outcome.out.startswith("Usage: dlmc recipes")
