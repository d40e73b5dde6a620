import json

import pytest

from dlmc.families import Overrides, detect
from dlmc.recipes import catalog, find, list_recipes, load
from dlmc_runtime.errors import UsageError

SOUND = find("tiny-llada").read_text()


@pytest.mark.parametrize("name", list_recipes())
def test_the_stated_number_of_weights_is_that_of_the_network(name):
    torch = pytest.importorskip("torch")
    from dlmc.denoiser.network import network

    recipe = load(name)
    spec = detect(recipe.config).read(recipe.config, recipe.generation_config, Overrides())
    with torch.device("meta"):
        denoiser = network(spec.denoiser)
    assert sum(weight.numel() for weight in denoiser.parameters()) == recipe.parameters


@pytest.mark.parametrize("name", ["tiny/tiny-gemma", "tiny/tiny-llada", "tiny/tiny-sdar"])
def test_a_tiny_recipe_states_the_shipped_checkpoint(name):
    recipe = load(name)
    path = catalog.root().parent / str(recipe.source) / "config.json"
    config = json.loads(path.read_text())
    assert {key: config.get(key) for key in recipe.config} == recipe.config


def test_the_catalog_covers_the_announced_models():
    announced = {"llada-8b-instruct", "llada-1.5", "sdar-1.7b-chat", "sdar-4b-chat"}
    announced |= {"sdar-8b-chat", "llada-8b-base", "illada-8b-instruct"}
    announced |= {"tiny-gemma", "tiny-llada", "tiny-sdar"}
    announced |= {"dream-v0-instruct-7b", "dream-coder-v0-instruct-7b", "diffucoder-7b-cpgrpo"}
    announced |= {"dreamon-v0-7b", "trado-8b-thinking", "coda-v0-instruct", "fast-dllm-v2-7b"}
    announced |= {
        f"sdar-{size}-chat-b{n}" for size in ("1.7b", "4b", "8b") for n in (8, 16, 32, 64)
    }
    announced |= {f"nemotron-labs-diffusion-{size}" for size in ("3b", "8b", "14b")}
    announced |= {"stable-diffcoder-8b-instruct", "qwen3-0.6b-diffusion-bd3lm"}
    announced |= {"modernbert-base-chat", "modernbert-large-chat"}
    announced |= {"llada2.0-mini", "llada2.1-mini", "llada2.2-mini", "llada-moe-7b-a1b-instruct"}
    announced |= {"sdar-30b-a3b-chat", "rnd1-base-0910", "diffusiongemma-26b-a4b-it"}
    assert announced <= {name.split("/")[1] for name in list_recipes()}


def test_a_recipe_is_found_by_model_folder_and_path(tmp_path):
    by_path = tmp_path / "mine.yaml"
    by_path.write_text(SOUND)
    assert load("tiny-llada") == load("tiny/tiny-llada") == load(by_path) == load(str(by_path))


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(UsageError, match=r"no recipe is called 'llada-8b'.*llada/llada-8b-base"):
        load("llada-8b")


def test_an_ambiguous_name_asks_for_the_folder(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.yaml").write_text(SOUND)
    monkeypatch.setattr(catalog, "root", lambda: tmp_path)
    with pytest.raises(UsageError, match="say a/same or b/same"):
        find("same")
