import pytest

from dlmc.recipes import find, list_recipes
from dlmc.recipes.check import check_recipe

SOUND = find("tiny-llada").read_text()


def changed(old: str, new: str) -> bytes:
    assert old in SOUND
    return SOUND.replace(old, new).encode()


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_sound(name):
    assert check_recipe(find(name)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("family: llada", "family: sdar", "family: 'sdar', but config is of llada"),
        ("name: tiny-llada", "name: other", "name: 'other' differs"),
        ("low_confidence", "greedy", "sampler: no sampler is called 'greedy'"),
        ("low_confidence", "autoregressive", "sampler: the sampler autoregressive takes no"),
        ("max_new_tokens: 64", "max_new_tokens: 640", "max_new_tokens: 640 exceeds"),
        ("cache: 0", "cache: 64", "profiles.0.cache: it keeps the whole sequence"),
        ("block: 160", "block: 1600", "profiles.0: exceeds the model's 512"),
        ("rows: 32", "rows: 8", "profiles: none has rows for a block of 32"),
        ("d_model: 128", "d_model: 130", "config.json: 'd_model' 130"),
    ],
)
def test_check_finds_what_does_not_fit_the_family(tmp_path, old, new, problem):
    path = tmp_path / "tiny-llada.yaml"
    path.write_bytes(changed(old, new))
    assert any(found.startswith(problem) for found in check_recipe(path)), check_recipe(path)


TARGETS = """
targets:
  - {target: tensorrt, precision: bfloat16, quantization: int8, device_memory: 1}
  - {target: openvino-cpu, profiles: [{batch: 1, block: 64, cache: 0, rows: 32}]}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("tensorrt", "abacus", "targets.0: no target is called 'abacus'"),
        ("openvino-cpu, ", "openvino-cpu, precision: float16, ", "targets.1: openvino-cpu cannot"),
        ("openvino-cpu, ", "openvino-cpu, quantization: int3, ", "targets.1.quantization: Input"),
        ("rows: 32", "rows: 8", "targets.1.profiles: none has rows for a block of 32"),
        ("cache: 0", "cache: 8", "targets.1.profiles.0.cache: it keeps the whole sequence"),
        (
            "batch: 1, block: 64",
            "batch: 9999999, block: 64",
            "targets.1: weights and caches take 3662.1 GiB, the device has 2",
        ),
    ],
)
def test_check_finds_what_a_target_cannot_do(tmp_path, old, new, problem):
    path = tmp_path / "tiny-llada.yaml"
    entries = TARGETS.replace("}]}", "}], device_memory: 2}")
    assert old in entries
    path.write_text(SOUND + entries)
    assert check_recipe(path) == []
    path.write_text(SOUND + entries.replace(old, new))
    assert any(found.startswith(problem) for found in check_recipe(path)), check_recipe(path)
