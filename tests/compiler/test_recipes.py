import json
from pathlib import Path

import pytest

from dlmc.families import Overrides, detect
from dlmc.recipes import Recipe, catalog, find, list_recipes, load
from dlmc.recipes.check import check_recipe
from dlmc.recipes.readme import BEGIN, is_current, size, updated
from dlmc.recipes.recipe import MAX_RECIPE_BYTES, parse_recipe
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Profile

SOUND = find("tiny-llada").read_text()


def changed(old: str, new: str) -> bytes:
    assert old in SOUND
    return SOUND.replace(old, new).encode()


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_sound(name):
    assert check_recipe(find(name)) == []


@pytest.mark.parametrize("name", list_recipes())
def test_the_stated_number_of_weights_is_that_of_the_network(name):
    torch = pytest.importorskip("torch")
    from dlmc.denoiser.denoiser import Denoiser

    recipe = load(name)
    spec = detect(recipe.config).read(recipe.config, recipe.generation_config, Overrides())
    with torch.device("meta"):
        denoiser = Denoiser(spec.denoiser)
    assert sum(weight.numel() for weight in denoiser.parameters()) == recipe.parameters


@pytest.mark.parametrize("name", ["tiny/tiny-llada", "tiny/tiny-sdar"])
def test_a_tiny_recipe_states_the_shipped_checkpoint(name):
    recipe = load(name)
    path = catalog.root().parent / str(recipe.source) / "config.json"
    if not path.exists():
        pytest.skip(f"{recipe.source} has not been trained yet")
    config = json.loads(path.read_text())
    assert {key: config.get(key) for key in recipe.config} == recipe.config


def test_the_catalog_covers_the_announced_models():
    announced = {"llada-8b-instruct", "llada-1.5", "sdar-1.7b-chat", "sdar-4b-chat"}
    announced |= {"sdar-8b-chat", "tiny-llada", "tiny-sdar"}
    assert announced <= {name.split("/")[1] for name in list_recipes()}


@pytest.mark.parametrize("folder", sorted({name.split("/")[0] for name in list_recipes()}))
def test_readme_tables_are_current(folder):
    assert is_current(catalog.root() / folder)


def test_a_recipe_is_found_by_model_folder_and_path(tmp_path):
    by_path = tmp_path / "mine.yaml"
    by_path.write_text(SOUND)
    assert load("tiny-llada") == load("tiny/tiny-llada") == load(by_path) == load(str(by_path))


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(UsageError, match=r"no recipe is called 'llada-8b'.*llada/llada-8b-ins"):
        load("llada-8b")


def test_an_ambiguous_name_asks_for_the_folder(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.yaml").write_text(SOUND)
    monkeypatch.setattr(catalog, "root", lambda: tmp_path)
    with pytest.raises(UsageError, match="say a/same or b/same"):
        find("same")


def test_values_have_the_types_of_the_model():
    recipe = load("tiny-sdar")
    assert recipe.profiles[0] == Profile(batch=1, block=8, cache=192, rows=8)
    assert recipe.config["rms_norm_eps"] == 1e-6
    assert recipe.sampler.parameters == {"threshold": 0.9}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed("max_new_tokens: 64", ""), "max_new_tokens: Field required"),
        (changed("max_new_tokens: 64", "max_new_tokens: many"), "max_new_tokens: Input"),
        (changed("max_new_tokens: 64", "max_new_tokens: '64'"), "max_new_tokens: Input"),
        (changed("max_new_tokens: 64", "max_tokens: 64"), "max_new_tokens: Field required"),
        (changed("max_new_tokens: 64", "max_new_tokens: 64\nextra: 1"), "extra: Extra inputs"),
        (changed("rows: 32}", "rows: 999}"), "profiles.0: rows 999 exceed block 160"),
        (changed("max_new_tokens: 64", "max_new_tokens: .nan"), "what JSON cannot"),
        (changed("max_new_tokens: 64", "max_new_tokens: 2020-01-01"), "what JSON cannot"),
        (changed("name: tiny-llada", "name: ../x"), "name: String should match"),
        (b"name: a\nname: b\n", r"here.yaml line 2: name is stated twice"),
        (b"config: {a: 1, a: 2}\n", r"here.yaml line 1: a is stated twice"),
        (b"a: &x [1]\nb: *x\n", "line 2: references are not supported"),
        (b"a: !!python/object/apply:os.system [ls]\n", "line 1: could not determine"),
        (b"a: [\n", "line 2: "),
        (b"\xff", "is not YAML"),
        (b"[" * 5000, "is not YAML"),
        (b"{? [a] : b}", "found unhashable key"),
        (b"", "here.yaml: the file: Input should be an object"),
        (b"a" * (MAX_RECIPE_BYTES + 1), "larger than"),
    ],
)
def test_a_broken_recipe_names_file_and_field(text, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_recipe(text, "here.yaml")
    assert str(caught.value).startswith("here.yaml")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("family: llada", "family: sdar", "family: 'sdar', but config is of llada"),
        ("name: tiny-llada", "name: other", "name: 'other' differs"),
        ("low_confidence", "greedy", "sampler: no sampler is called 'greedy'"),
        ("max_new_tokens: 64", "max_new_tokens: 640", "max_new_tokens: 640 exceeds"),
        ("cache: 0", "cache: 64", "profiles.0.cache: llada sees the whole sequence"),
        ("block: 160", "block: 1600", "profiles.0: exceeds the model's 512"),
        ("rows: 32", "rows: 8", "profiles: none has rows for a block of 32"),
        ("d_model: 128", "d_model: 130", "config.json: 'd_model' 130"),
    ],
)
def test_check_finds_what_does_not_fit_the_family(tmp_path, old, new, problem):
    path = tmp_path / "tiny-llada.yaml"
    path.write_bytes(changed(old, new))
    assert any(found.startswith(problem) for found in check_recipe(path)), check_recipe(path)


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


def test_a_recipe_is_frozen():
    recipe: Recipe = load("tiny-llada")
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "x"
