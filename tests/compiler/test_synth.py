"""Random checkpoints: whatever is written must open, fit its family and repeat."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from dlmc import recipes
from dlmc.checkpoint import Checkpoint, check_weights
from dlmc.families import Overrides, detect
from dlmc.families.diffusion_gemma import DIFFUSION_GEMMA
from dlmc.families.llada import LLADA
from dlmc.families.llada2 import LLADA2
from dlmc.families.sdar import SDAR, SDAR_MOE
from dlmc.synth import Blueprint, Scale, special_tokens, write_checkpoint
from dlmc_runtime.errors import CheckpointError, DlmcError, UsageError

# The family knows their masks.
UNSTATED = (
    "fast-dllm-v2-7b",
    "stable-diffcoder-8b-instruct",
    *("llada2.0-mini", "llada2.1-flash", "llada2.2-mini"),
)
SMALL = Scale(layers=2, hidden=64, heads=4, vocab=300)
GEMMA = "diffusiongemma-26b-a4b-it"
SPARSE = (
    GEMMA,
    "llada2.0-mini",
    "llada2.1-flash",
    "llada2.2-mini",
    "llada-moe-7b-a1b-instruct",
    "sdar-30b-a3b-chat",
    "rnd1-base-0910",
)
FEW = replace(SMALL, experts=4)
RECIPES = (
    "llada-8b-instruct",
    "illada-8b-base",
    "dream-v0-instruct-7b",
    "sdar-1.7b-chat",
    "sdar-8b-chat",
    "qwen3-0.6b-diffusion-bd3lm",
    "qwen2.5-coder-0.5b-instruct-diffusion-mdlm",
    "fast-dllm-v2-7b",
    "nemotron-labs-diffusion-8b",
    "stable-diffcoder-8b-instruct",
    "coda-v0-instruct",
    "modernbert-base-chat",
)


def small(recipe: str) -> Scale:
    """Return a scale at which a recipe's checkpoint has few bytes."""
    return FEW if recipe in SPARSE else SMALL


def blueprint(recipe: str, scale: Scale) -> Blueprint:
    chosen = recipes.load(recipe)
    family = detect(chosen.config, prefer=chosen.family)
    return Blueprint.of(family, chosen.config, chosen.generation_config, scale)


@pytest.mark.parametrize("recipe", [*RECIPES, *SPARSE, "tiny-llada", "tiny-sdar"])
def test_round_trip(tmp_path: Path, recipe: str):
    plan = blueprint(recipe, small(recipe))
    write_checkpoint(plan, tmp_path / "synthetic")
    checkpoint = Checkpoint.open(tmp_path / "synthetic")
    original = recipes.load(recipe)
    family = detect(checkpoint.config, prefer=original.family)
    spec = family.read(checkpoint.config, checkpoint.generation_config, Overrides())
    assert spec == plan.spec
    located = check_weights(family, spec, checkpoint)
    assert {where.dtype for where in located.values()} == {"BF16"}
    assert spec.denoiser.num_experts == (4 if recipe in SPARSE else 0)
    added = {"torch_dtype"} | ({"mask_token_id"} if recipe in UNSTATED else set())
    assert checkpoint.config.keys() == original.config.keys() | added
    assert checkpoint.generation_config.keys() == original.generation_config.keys()


def test_unscaled_shapes_are_those_of_the_recipe():
    plan = blueprint("llada-8b-instruct", Scale())
    config = recipes.load("llada-8b-instruct").config
    assert plan.config == config
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors("bfloat16")}
    assert shapes["model.transformer.wte.weight"] == (126464, 4096)
    assert shapes["model.transformer.blocks.31.ff_out.weight"] == (4096, 12288)
    assert len(shapes) == 3 + 9 * 32


@pytest.mark.parametrize(
    ("recipe", "scale", "expected"),
    [
        ("llada-8b-instruct", Scale(hidden=1024), (1024, 3072, 8, 8, 128)),
        ("llada-8b-instruct", Scale(hidden=64), (64, 192, 1, 1, 64)),
        ("llada-8b-instruct", Scale(hidden=400), (400, 1200, 2, 2, 200)),
        ("llada-8b-instruct", Scale(kv_heads=8), (4096, 12288, 32, 8, 128)),
        ("sdar-4b-chat", Scale(), (2560, 9728, 32, 8, 128)),
        ("sdar-4b-chat", Scale(hidden=640, head_dim=128), (640, 2432, 8, 2, 128)),
        ("sdar-1.7b-chat", Scale(hidden=256), (256, 768, 2, 1, 128)),
        ("sdar-1.7b-chat", Scale(hidden=96, heads=6), (96, 288, 6, 3, 16)),
        ("sdar-1.7b-chat", Scale(intermediate=40), (2048, 40, 16, 8, 128)),
    ],
)
def test_sizes_follow_each_other(recipe: str, scale: Scale, expected: tuple[int, ...]):
    shape = blueprint(recipe, scale).spec.denoiser
    assert expected == (
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_attention_heads,
        shape.num_key_value_heads,
        shape.head_dim,
    )


def test_special_tokens_move_into_a_smaller_vocabulary():
    plan = blueprint("sdar-1.7b-chat", Scale(vocab=300))
    assert plan.config["mask_token_id"] == 299
    assert plan.generation_config["eos_token_id"] == [298, 297]
    assert plan.config["eos_token_id"] == plan.config["pad_token_id"] == 297


def test_special_tokens_in_range_stay():
    config = {**recipes.load("llada-8b-instruct").config, "mask_token_id": 5}
    plan = Blueprint.of(LLADA, config, {}, Scale(vocab=300))
    assert plan.config["mask_token_id"] == 5
    assert plan.config["embedding_size"] == plan.config["vocab_size"] == 300
    assert plan.spec.stop_ids == (299,)


@pytest.mark.parametrize(
    ("recipe", "scale", "sentence"),
    [
        ("llada-8b-instruct", Scale(head_dim=64), "do not state the head size"),
        ("llada-8b-instruct", Scale(vocab=257), "vocabulary of 257 is too small: .* need 258"),
        ("llada-8b-instruct", Scale(hidden=64, heads=5), "not a multiple of 'n_heads'"),
        ("llada-8b-instruct", Scale(hidden=63), "head size 63 is odd"),
        ("sdar-1.7b-chat", Scale(kv_heads=3), "16 attention heads cannot share 3"),
        ("modernbert-base-chat", Scale(kv_heads=2), "do not state kv-heads: leave out --kv-heads"),
        ("sdar-1.7b-chat", Scale(experts=4), "do not state experts: leave out --experts"),
        ("llada-8b-instruct", Scale(top_k_experts=4), "top-k-experts: leave out --top-k-experts"),
        (GEMMA, Scale(experts=4, top_k_experts=5), "'top_k_experts' is 5"),
        (GEMMA, Scale(positions=64), "'canvas_length' is 256"),
        ("sdar-1.7b-chat", Scale(positions=2), "'block_size' is 4"),
    ],
)
def test_scales_that_cannot_be(recipe: str, scale: Scale, sentence: str):
    with pytest.raises((UsageError, CheckpointError), match=sentence):
        blueprint(recipe, scale)


@pytest.mark.parametrize("recipe", [*RECIPES, *SPARSE])
def test_tokenizer(tmp_path: Path, recipe: str):
    plan = blueprint(recipe, small(recipe))
    write_checkpoint(plan, tmp_path / "synthetic")
    tokenizer = Tokenizer.from_file(str(tmp_path / "synthetic" / "tokenizer.json"))
    text = "Grüße, 世界!\n\x00\x7f"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    special = special_tokens(plan.spec, plan.family)
    assert plan.spec.mask_id in special or recipe == GEMMA
    for token, name in special.items():
        assert tokenizer.encode(f"a{name}").ids[-1] == token
    assert all(tokenizer.id_to_token(token) for token in range(300))
    named = json.loads((tmp_path / "synthetic" / "tokenizer_config.json").read_text())
    if recipe == GEMMA:
        assert named["mask_token"] is plan.spec.mask_id is None
    else:
        assert tokenizer.token_to_id(named["mask_token"]) == plan.spec.mask_id
    assert tokenizer.token_to_id(named["eos_token"]) == plan.spec.stop_ids[0]
    assert tokenizer.token_to_id(named["pad_token"]) == plan.spec.pad_id


def test_same_seed_same_weights_however_split(tmp_path: Path):
    plan = blueprint("sdar-1.7b-chat", SMALL)
    write_checkpoint(plan, tmp_path / "whole", dtype="float32")
    write_checkpoint(plan, tmp_path / "split", dtype="float32", shard_bytes=100_000)
    write_checkpoint(plan, tmp_path / "other", dtype="float32", seed=1)
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    shards = sorted((tmp_path / "split").glob("*.safetensors"))
    assert len(shards) > 2
    assert all(path.stat().st_size < 120_000 for path in shards)
    split = {name: array for path in shards for name, array in load_file(path).items()}
    other = load_file(tmp_path / "other" / "model.safetensors")
    assert (
        split.keys()
        == whole.keys()
        == other.keys()
        == Checkpoint.open(tmp_path / "split").tensors.keys()
    )
    name = "model.embed_tokens.weight"
    assert all(np.array_equal(split[key], whole[key]) for key in whole)
    assert not np.array_equal(other[name], whole[name])
    assert 0.019 < whole[name].std() < 0.021
    assert np.all(whole["model.norm.weight"] == 1)


def test_output_that_exists_is_kept(tmp_path: Path):
    with pytest.raises(UsageError, match="exists: delete it"):
        write_checkpoint(blueprint("tiny-llada", SMALL), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_remains_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dlmc.synth.write_shards", full)
    with pytest.raises(DlmcError, match="No space left on device"):
        write_checkpoint(blueprint("tiny-llada", SMALL), tmp_path / "synthetic")
    assert list(tmp_path.iterdir()) == []


def test_output_below_a_file(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DlmcError, match="cannot write"):
        write_checkpoint(blueprint("tiny-llada", SMALL), tmp_path / "file" / "synthetic")


def test_tied_checkpoints_have_no_head():
    config = recipes.load("sdar-1.7b-chat").config
    assert config["tie_word_embeddings"] is True
    names = {tensor.name for tensor in Blueprint.of(SDAR, config, {}, SMALL).tensors("float32")}
    assert "lm_head.weight" not in names
    untied = {**config, "tie_word_embeddings": False}
    more = {tensor.name for tensor in Blueprint.of(SDAR, untied, {}, SMALL).tensors("float32")}
    assert more - names == {"lm_head.weight"}


@pytest.mark.parametrize("recipe", SPARSE)
def test_a_recipe_of_experts_is_kept_as_it_is(recipe: str):
    assert blueprint(recipe, Scale()).config == recipes.load(recipe).config


@pytest.mark.parametrize("recipe", SPARSE)
@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (Scale(experts=16), (16, 8, 1)),
        (Scale(experts=4), (4, 4, 1)),
        (Scale(experts=2), (2, 2, 1)),
        (Scale(experts=12, top_k_experts=2), (12, 2, 1)),
        (Scale(expert_intermediate=40), (None, 8, None)),
        (Scale(hidden=512), (None, 8, 0.25)),
    ],
)
def test_experts_scale(recipe: str, scale: Scale, expected: tuple[int | None, int, float | None]):
    original = blueprint(recipe, Scale(layers=2)).spec.denoiser
    shape = blueprint(recipe, replace(scale, layers=2)).spec.denoiser
    experts, chosen, share = expected
    if scale.hidden is not None:
        share = 512 / original.hidden_size
    width = 40 if share is None else round(original.expert_width * share / 8) * 8
    assert shape.num_experts == (experts or original.num_experts)
    assert (shape.experts_per_token, shape.expert_width) == (chosen, width)


@pytest.mark.parametrize(
    ("experts", "groups", "kept"), [(256, 8, 4), (16, 8, 4), (12, 6, 4), (9, 3, 3), (7, 1, 1)]
)
def test_groups_of_experts_stay_even_and_large_enough(experts: int, groups: int, kept: int):
    moe = blueprint("llada2.0-mini", Scale(experts=experts)).spec.denoiser.moe
    assert moe is not None
    assert (moe.groups, moe.kept_groups) == (groups, kept)


@pytest.mark.parametrize(
    ("experts", "top_k", "capacity"), [(64, 8, 48), (16, 8, 16), (256, 60, 60)]
)
def test_a_block_has_enough_experts_to_choose_from(experts: int, top_k: int, capacity: int):
    plan = blueprint("llada2.2-mini", Scale(experts=experts, top_k_experts=top_k))
    assert plan.spec.denoiser.moe is not None
    assert plan.spec.denoiser.moe.capacity == capacity


def test_rotated_dimensions_follow_the_head_size():
    config = {**recipes.load("llada2.0-mini").config, "rotary_dim": 64}
    plan = Blueprint.of(LLADA2, config, {}, Scale(hidden=64, heads=4))
    assert (plan.spec.denoiser.head_dim, plan.config["rotary_dim"]) == (16, 8)


@pytest.mark.parametrize(("layers", "kinds"), [(1, "s"), (3, "sss"), (20, "s" * 20)])
def test_llada_moe_says_of_every_layer_what_it_is(layers: int, kinds: str):
    plan = blueprint("llada-moe-7b-a1b-base", Scale(layers=layers))
    assert plan.config["moe_layer_freq"] == [1] * len(kinds)


def test_dense_layers_beyond_the_last_are_dropped():
    config = {**recipes.load("sdar-30b-a3b-chat").config, "mlp_only_layers": [0, 40]}
    plan = Blueprint.of(SDAR_MOE, config, {}, Scale(layers=3))
    assert plan.config["mlp_only_layers"] == [0]
    assert plan.spec.denoiser.kinds == ("dense", "moe", "moe")


def test_experts_are_written_one_by_one():
    names = [tensor.name for tensor in blueprint("llada2.0-mini", FEW).tensors("float32")]
    first = "model.layers.1.mlp.experts."
    parts = [name.removeprefix(first) for name in names if name.startswith(first)]
    assert parts[:3] == ["0.gate_proj.weight", "0.up_proj.weight", "1.gate_proj.weight"]
    assert len(parts) == 3 * 4
    assert not [name for name in names if name.startswith("model.layers.0.mlp.experts")]


@pytest.mark.parametrize("layers", [1, 2, 6, 13, 40])
def test_the_last_layer_of_diffusion_gemma_sees_everything(layers: int):
    plan = blueprint(GEMMA, Scale(layers=layers))
    kinds = plan.spec.denoiser.kinds
    assert len(kinds) == layers
    assert [i for i, kind in enumerate(kinds) if kind == "full"] == sorted(
        {*range(5, layers, 6), layers - 1}
    )


@pytest.mark.parametrize(
    ("scale", "heads", "full"),
    [
        (Scale(), (16, 8, 256), (2, 512)),
        (Scale(hidden=1024, heads=8, head_dim=64), (8, 4, 64), (1, 128)),
        (Scale(heads=32), (32, 16, 88), (4, 176)),
        (Scale(head_dim=6), (16, 8, 6), (2, 12)),
        (Scale(hidden=64, heads=1), (1, 1, 64), (1, 128)),
    ],
)
@pytest.mark.parametrize("newer", [False, True])
def test_heads_of_layers_that_see_everything_follow(
    newer: bool, scale: Scale, heads: tuple[int, ...], full: tuple[int, ...]
):
    chosen = recipes.load(GEMMA)
    config: dict[str, Any] = json.loads(json.dumps(chosen.config))
    if newer:  # as transformers 5.24 writes it
        text = config["text_config"]
        own = {"head_dim": text.pop("global_head_dim")}
        own["num_key_value_heads"] = text.pop("num_global_key_value_heads")
        text["per_layer_config"] = {str(i): own for i in range(5, 30, 6)}
    scale = replace(scale, layers=7)
    shape = Blueprint.of(DIFFUSION_GEMMA, config, {}, scale).spec.denoiser
    assert shape.gemma is not None
    assert heads == (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim)
    assert full == (shape.gemma.global_key_value_heads, shape.gemma.global_head_dim)


def test_special_tokens_of_diffusion_gemma_move_wherever_they_stand():
    plan = blueprint(GEMMA, Scale(vocab=300))
    config, text = plan.config, plan.config["text_config"]
    images = [config[f"{name}_token_id"] for name in ("eoi", "image", "boi")]
    assert images == [299, 298, 297]
    assert (config["eos_token_id"], text["pad_token_id"], text["bos_token_id"]) == ([1, 106], 0, 2)
    assert plan.spec.stop_ids == (1, 106, 50)


def test_nested_special_tokens_move_with_those_above():
    config: dict[str, Any] = json.loads(json.dumps(recipes.load(GEMMA).config))
    config["text_config"]["eos_token_id"] = config["eos_token_id"] = 1000
    plan = Blueprint.of(DIFFUSION_GEMMA, config, {}, Scale(vocab=300))
    assert plan.config["text_config"]["eos_token_id"] == plan.config["eos_token_id"]
    assert plan.spec.stop_ids == (plan.config["eos_token_id"],)


def test_a_smaller_checkpoint_has_no_tower_of_released_size():
    assert blueprint(GEMMA, Scale(layers=6)).config["vision_config"]["num_hidden_layers"] == 1
    bare = {**recipes.load(GEMMA).config, "vision_config": None}
    plan = Blueprint.of(DIFFUSION_GEMMA, bare, {}, Scale(layers=6))
    assert plan.config["vision_config"] is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_stated_type_is_that_of_the_weights(tmp_path: Path, dtype: str):
    write_checkpoint(blueprint(GEMMA, FEW), tmp_path / "synthetic", dtype=dtype)
    config = json.loads((tmp_path / "synthetic" / "config.json").read_text())
    stated = (config["dtype"], config["torch_dtype"], config["text_config"]["dtype"])
    assert stated == (dtype,) * 3


def test_transformers_loads_diffusion_gemma(tmp_path: Path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", "5.24")
    write_checkpoint(blueprint(GEMMA, FEW), tmp_path / "synthetic", dtype="float32")
    network = transformers.DiffusionGemmaForBlockDiffusion
    model, loaded = network.from_pretrained(tmp_path / "synthetic", output_loading_info=True)
    assert not loaded["unexpected_keys"]
    assert not loaded["mismatched_keys"]
    tower = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
    assert not [name for name in loaded["missing_keys"] if not name.startswith(tower)]
    assert model.model.decoder.embed_tokens.weight.dtype == torch.float32


def test_scale_is_left_alone():
    assert replace(SMALL, hidden=None, heads=None).sizes(
        blueprint("tiny-sdar", Scale()).spec.denoiser
    ) == {"layers": 2, "vocab": 300}
