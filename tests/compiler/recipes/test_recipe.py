import pytest

from dlmc.recipes import Recipe, find, load
from dlmc.recipes.recipe import MAX_RECIPE_BYTES, parse_recipe
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Profile

SOUND = find("tiny-llada").read_text()


def changed(old: str, new: str) -> bytes:
    assert old in SOUND
    return SOUND.replace(old, new).encode()


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


def test_a_recipe_is_frozen():
    recipe: Recipe = load("tiny-llada")
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "x"
