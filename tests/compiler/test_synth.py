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
from dlmc.families.llada import LLADA
from dlmc.families.sdar import SDAR
from dlmc.synth import Blueprint, Scale, special_tokens, write_checkpoint
from dlmc_runtime.errors import CheckpointError, DlmcError, UsageError

UNSTATED = (
    "fast-dllm-v2-7b",
    "llada2.0-mini",
    "llada2.2-mini",
    "llada-moe-7b-a1b-base",
)  # their files leave the mask to the family
SMALL = Scale(layers=2, hidden=64, heads=4, vocab=300)
FEW = replace(SMALL, experts=16)
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
    "llada2.0-mini",
    "llada2.2-mini",
    "llada-moe-7b-a1b-base",
    "sdar-30b-a3b-chat",
    "rnd1-base-0910",
    "diffusiongemma-26b-a4b-it",
)

SPARSE = RECIPES[-6:]


def blueprint(recipe: str, scale: Scale) -> Blueprint:
    chosen = recipes.load(recipe)
    family = detect(chosen.config, prefer=chosen.family)
    return Blueprint.of(family, chosen.config, chosen.generation_config, scale)


@pytest.mark.parametrize("recipe", [*RECIPES, "tiny-llada", "tiny-sdar"])
def test_round_trip(tmp_path: Path, recipe: str):
    plan = blueprint(recipe, FEW if recipe in SPARSE else SMALL)
    write_checkpoint(plan, tmp_path / "synthetic")
    checkpoint = Checkpoint.open(tmp_path / "synthetic")
    original = recipes.load(recipe)
    family = detect(checkpoint.config, prefer=original.family)
    spec = family.read(checkpoint.config, checkpoint.generation_config, Overrides())
    assert spec == plan.spec
    located = check_weights(family, spec, checkpoint)
    assert {where.dtype for where in located.values()} == {"BF16"}
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
        ("sdar-1.7b-chat", Scale(positions=2), "'block_size' is 4"),
    ],
)
def test_scales_that_cannot_be(recipe: str, scale: Scale, sentence: str):
    with pytest.raises((UsageError, CheckpointError), match=sentence):
        blueprint(recipe, scale)


@pytest.mark.parametrize("recipe", RECIPES)
def test_tokenizer(tmp_path: Path, recipe: str):
    plan = blueprint(recipe, SMALL)
    write_checkpoint(plan, tmp_path / "synthetic")
    tokenizer = Tokenizer.from_file(str(tmp_path / "synthetic" / "tokenizer.json"))
    text = "Grüße, 世界!\n\x00\x7f"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    special = special_tokens(plan.spec, plan.family)
    mask = plan.spec.mask_id  # of a network of uniform noise there is none
    assert mask is None or mask in special
    for token, name in special.items():
        assert tokenizer.encode(f"a{name}").ids[-1] == token
    assert all(tokenizer.id_to_token(token) for token in range(300))
    named = json.loads((tmp_path / "synthetic" / "tokenizer_config.json").read_text())
    assert (None if mask is None else tokenizer.token_to_id(named["mask_token"])) == mask
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


def test_scale_is_left_alone():
    assert replace(SMALL, hidden=None, heads=None).sizes(
        blueprint("tiny-sdar", Scale()).spec.denoiser
    ) == {"layers": 2, "vocab": 300}


@pytest.mark.parametrize(
    ("experts", "groups", "kept", "used"),
    [(256, 8, 4, 8), (32, 8, 4, 8), (8, 2, 1, 8), (4, 1, 1, 4)],
)
def test_experts_are_fewer_and_fill_their_groups(experts: int, groups: int, kept: int, used: int):
    moe = blueprint("llada2.0-mini", Scale(experts=experts)).spec.denoiser.moe
    assert moe is not None
    assert (moe.experts, moe.top_k) == (experts, used)
    if experts in (256, 32):
        assert (moe.groups, moe.kept_groups) == (groups, kept)


def test_experts_follow_the_hidden_size():
    denoiser = blueprint("llada2.0-mini", Scale(hidden=256)).spec.denoiser
    assert denoiser.moe is not None
    assert (denoiser.moe.width, denoiser.intermediate_size) == (64, 640)
    stated = blueprint("llada2.0-mini", Scale(hidden=256, expert_intermediate=40)).spec.denoiser
    assert stated.moe is not None
    assert stated.moe.width == 40


def test_layers_keep_what_is_said_of_each():
    assert blueprint("llada2.0-mini", Scale(layers=1)).spec.denoiser.kinds == ("moe",)
    assert blueprint("llada2.0-mini", Scale(layers=3)).spec.denoiser.kinds == (
        "dense",
        "moe",
        "moe",
    )
    assert blueprint("llada-moe-7b-a1b-base", Scale(layers=3)).spec.denoiser.kinds == ("moe",) * 3
    gemma = blueprint("diffusiongemma-26b-a4b-it", Scale(layers=2, hidden=704, experts=8)).spec
    assert gemma.denoiser.kinds == ("sliding", "full")
    assert gemma.denoiser.gemma is not None
    assert gemma.denoiser.gemma.num_experts == 8
    assert gemma.denoiser.gemma.expert_intermediate_size == 176


def test_a_network_without_experts_has_none_to_scale():
    with pytest.raises(UsageError, match="sdar checkpoints do not state experts"):
        blueprint("sdar-4b-chat", Scale(experts=8))
