import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file, save_file

from dlmc.checkpoint import ResolvedCheckpoint
from dlmc.export import plan as module
from dlmc.export.defaults import default_profiles
from dlmc.export.options import ExportOptions
from dlmc.export.plan import plan_export
from dlmc_runtime.errors import CheckpointError, RequestError, UsageError
from dlmc_runtime.manifest import Profile, TargetSpec, Tolerance


@pytest.fixture
def options(checkpoint, tmp_path) -> ExportOptions:
    return ExportOptions(str(checkpoint.root), tmp_path / "bundle")


@pytest.fixture
def recipe(checkpoint, tmp_path):
    """Write a recipe of the random checkpoint, with some of it changed, and return its path."""

    def write(**changes: object) -> str:
        data = {
            "name": "random",
            "description": "random weights",
            "family": "sdar",
            "config": checkpoint.config,
            "candidates": 5,
            "profiles": [{"batch": 2, "block": 8, "cache": 16, "rows": 4}],
            "sampler": {"name": "sequential", "parameters": {"steps": 2}},
            "max_new_tokens": 12,
            "tolerances": {"entropy": {"atol": 0.5}},
            **changes,
        }
        path = tmp_path / "random.yaml"
        path.write_text(yaml.safe_dump(data))
        return str(path)

    return write


def test_family_and_defaults_come_from_the_checkpoint(options, checkpoint):
    plan = plan_export(options)
    assert plan.spec == checkpoint.spec
    assert plan.source == "random"
    assert (plan.revision, plan.recipe) == (None, None)
    assert plan.suppressed == (7,)
    assert plan.sampler == checkpoint.spec.sampler
    assert plan.max_new_tokens == 64
    assert plan.profiles[0] == Profile(batch=1, block=4, cache=64, rows=4)
    assert plan.text is not None
    assert plan.text.template == "{{ 1 }}"
    assert not plan.warnings


def test_writes_nothing(options):
    plan_export(options)
    assert list(options.output.parent.iterdir()) == []


def test_counts_parameters_and_bytes(options, checkpoint):
    plan = plan_export(options)
    assert plan.parameters == sum(p.numel() for p in checkpoint.module.parameters())
    assert plan.weight_bytes == 4 * plan.parameters
    assert plan.files == {"weights/model.safetensors": checkpoint.root / "model.safetensors"}


def test_options_win(options):
    changes = {"mask_id": 11, "block_length": 8, "shift": 1, "candidates": 2}
    plan = plan_export(replace(options, **changes, suppress=(20, 11, 3)))
    assert (plan.spec.mask_id, plan.spec.block_length, plan.spec.shift) == (11, 8, 1)
    assert plan.spec.candidates == 2
    assert plan.suppressed == (3, 11, 20)
    assert plan.profiles[0].block == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mask_id": 300}, "mask-id 300 does not fit: give 0 to 299"),
        ({"mask_id": -1}, "mask-id -1"),
        ({"candidates": 0}, "candidates 0"),
        ({"candidates": 301}, "candidates 301"),
        ({"candidates": 300}, "300 candidates exceed the 299 tokens"),
        ({"candidates": 299, "suppress": (3,)}, "299 candidates exceed the 298"),
        ({"block_length": 0}, "block-length 0"),
        ({"block_length": 65}, "block-length 65"),
        ({"shift": 2}, "shift 2"),
        ({"suppress": (300,)}, "--suppress 300 is outside the vocabulary: give 0 to 299"),
        ({"suppress": (-1,)}, "--suppress -1"),
        ({"family": "sdra"}, "unknown family 'sdra'"),
        ({"revision": "main"}, "has no revisions"),
        ({"recipe": "no-such-recipe"}, "no recipe"),
        ({"source": None}, "nothing to export"),
        ({"source": ""}, "'' is neither a folder nor a hub id"),
        ({"source": "no/such/folder/here"}, "neither a folder nor a hub id"),
    ],
)
def test_refuses_what_cannot_be_meant(options, changes, words):
    with pytest.raises(UsageError, match=words):
        plan_export(replace(options, **changes))


@pytest.mark.parametrize("attention", ["full", "block", "context"])
def test_attention_decides_the_shapes(options, attention):
    plan = plan_export(replace(options, attention=attention))
    assert plan.spec.regime == attention
    assert plan.profiles == default_profiles(plan.spec)
    assert bool(plan.profiles[0].cache) == (attention != "full")


def test_a_recipe_has_shapes_for_one_attention(options, recipe):
    made = recipe()
    assert plan_export(replace(options, recipe=made, attention="context")).recipe == "random"
    with pytest.raises(UsageError, match="recipe random has no shapes for the attention full"):
        plan_export(replace(options, recipe=made, attention="full"))
    with pytest.raises(UsageError, match="--attention half does not fit"):
        plan_export(replace(options, attention="half"))


def test_an_existing_output_is_refused_first(options):
    options.output.mkdir()
    with pytest.raises(UsageError, match="exists"):
        plan_export(replace(options, source="also/not/there"))


def test_suppressing_all_stop_ids_is_a_warning(options, checkpoint):
    plan = plan_export(replace(options, suppress=checkpoint.spec.stop_ids))
    assert plan.warnings == ("the stop ids [5] are suppressed and can never end an answer",)


def test_a_tokenizer_beyond_the_vocabulary_is_a_warning(make_checkpoint, options):
    source = make_checkpoint()
    tokenizer = json.loads((source.root / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["extra"] = 300
    (source.root / "tokenizer.json").write_text(json.dumps(tokenizer))
    (warning,) = plan_export(replace(options, source=str(source.root))).warnings
    assert "ids up to 300" in warning


def test_without_a_tokenizer(make_checkpoint, options):
    source = make_checkpoint()
    (source.root / "tokenizer.json").unlink()
    bare = replace(options, source=str(source.root))
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        plan_export(bare)
    assert plan_export(replace(bare, tokenizer=False)).text is None


def test_without_weights_the_config_is_enough(checkpoint, options, tmp_path):
    source = tmp_path / "configured"
    source.mkdir()
    shutil.copy(checkpoint.root / "config.json", source)
    bare = replace(options, source=str(source), tokenizer=False)
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        plan_export(bare)
    plan = plan_export(replace(bare, weights=False))
    assert plan.files == {}
    full = plan_export(options)
    assert plan.parameters == full.parameters
    shapes = {name: weight.shape for name, weight in full.weights.items()}
    assert {name: weight.shape for name, weight in plan.weights.items()} == shapes


def test_a_recipe_decides_what_options_leave_open(options, recipe):
    plan = plan_export(replace(options, recipe=recipe()))
    assert plan.recipe == "random"
    assert plan.spec.candidates == 5
    assert plan.max_new_tokens == 12
    assert plan.sampler.name == "sequential"
    assert plan.profiles == (Profile(batch=2, block=8, cache=16, rows=4),)
    assert plan.tolerances["entropy"] == Tolerance(atol=0.5)
    assert plan.tolerances["logsumexp"].atol == 1e-3
    assert plan_export(replace(options, recipe=recipe(), candidates=3)).spec.candidates == 3


def test_a_recipe_says_what_targets_build(options, recipe):
    targets = [{"target": "openvino-cpu", "precision": "bfloat16", "device_memory": 4}]
    plan = plan_export(replace(options, recipe=recipe(targets=targets)))
    wanted = TargetSpec(target="openvino-cpu", precision="bfloat16", device_memory=4)
    assert plan.targets == (wanted,)
    assert plan_export(options).targets == ()


def test_a_recipe_alone_is_enough_for_a_graph(options, recipe):
    alone = replace(options, source=None, recipe=recipe(), weights=False, tokenizer=True)
    plan = plan_export(alone)
    assert (plan.source, plan.text) == ("random", None)
    assert plan.spec.denoiser.vocab_size == 300


def test_a_recipe_names_its_checkpoint(options, recipe, checkpoint):
    with pytest.raises(UsageError, match="names no checkpoint"):
        plan_export(replace(options, source=None, recipe=recipe()))
    path = recipe(source=str(checkpoint.root))
    assert plan_export(replace(options, source=None, recipe=path)).source == "random"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "llada"}, "is for llada, the checkpoint is sdar"),
        ({"profiles": [{"batch": 1, "block": 4, "cache": 65, "rows": 4}]}, "the model 64 posit"),
        ({"profiles": [{"batch": 1, "block": 4, "cache": 8, "rows": 1}]}, "no profile for a block"),
        (
            {
                "targets": [
                    {
                        "target": "tensorrt",
                        "profiles": [{"batch": 1, "block": 65, "cache": 8, "rows": 4}],
                    }
                ]
            },
            "has a profile 1x65 over 8, 4 rows, the model 64 positions",
        ),
        ({"candidates": 301}, "candidates 301"),
        ({"max_new_tokens": 65}, "max-new-tokens 65"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(options, recipe, changes, words):
    with pytest.raises(UsageError, match=words):
        plan_export(replace(options, recipe=recipe(**changes)))


def test_a_hub_id_is_recorded_with_its_commit(options, checkpoint, monkeypatch):
    found = ResolvedCheckpoint(checkpoint.root, "owner/name", "0123abc")
    asked = []

    def resolve(*arguments, **named):
        asked.append((arguments, named))
        return found

    monkeypatch.setattr(module, "resolve", resolve)
    plan = plan_export(replace(options, source="owner/name", revision="main"))
    assert (plan.source, plan.revision) == ("owner/name", "0123abc")
    plan_export(replace(options, source="owner/name", weights=False))
    assert asked == [
        (("owner/name", "main"), {"weights": True, "adapter": None}),
        (("owner/name", None), {"weights": False, "adapter": None}),
    ]


def test_a_folder_is_recorded_by_name_only(options, checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint.root)
    assert plan_export(replace(options, source=".")).source == "random"


def test_the_config_is_kept_without_its_origin(make_checkpoint, options):
    source = make_checkpoint(_name_or_path="/elsewhere/someone/checkpoints/random")
    plan = plan_export(replace(options, source=str(source.root)))
    assert plan.config == {k: v for k, v in source.config.items() if k != "_name_or_path"}


def test_weights_of_another_shape_are_refused(make_checkpoint, options):
    source = make_checkpoint()
    source.config["intermediate_size"] = 40
    (source.root / "config.json").write_text(json.dumps(source.config))
    with pytest.raises(CheckpointError, match="of another shape"):
        plan_export(replace(options, source=str(source.root)))


def test_truncated_weights_are_refused(make_checkpoint, options):
    path: Path = make_checkpoint().root / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="truncated"):
        plan_export(replace(options, source=str(path.parent)))


def tokenized(root, text, token=7):
    """Write an A2D checkpoint whose mask only the tokenizer knows."""
    from tokenizers import Tokenizer, models

    root.mkdir()
    config = {
        "architectures": ["A2DQwen3LMHeadModel"],
        "eos_token_id": 5,
        "head_dim": 8,
        "hidden_size": 16,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 32,
    }
    (root / "config.json").write_text(json.dumps(config))
    vocabulary = {f"t{index}": index for index in range(40) if index != token} | {text: token}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))  # noqa: S106
    tokenizer.save(str(root / "tokenizer.json"))
    return ExportOptions(str(root), root.parent / "bundle", weights=False)


def test_the_tokenizer_may_know_the_mask(tmp_path):
    asked = tokenized(tmp_path / "source", "<|mask|>")
    assert plan_export(asked).spec.mask_id == 7
    assert plan_export(replace(asked, mask_id=9)).spec.mask_id == 9
    assert plan_export(replace(asked, tokenizer=False)).spec.mask_id == 7
    assert plan_export(replace(asked, family="a2d_bd3lm")).spec.regime == "block"


def test_a_mask_that_the_tokenizer_does_not_know_either(tmp_path):
    with pytest.raises(
        CheckpointError, match="'mask_token_id' is missing: state it with --mask-id"
    ):
        plan_export(tokenized(tmp_path / "source", "[MASK]"))


def test_a_mask_beyond_the_vocabulary(tmp_path):
    asked = tokenized(tmp_path / "source", "<|mask|>", token=39)
    with pytest.raises(CheckpointError, match=r"<\|mask\|> has the id 39, .* ids below 32"):
        plan_export(asked)


def test_a_recipe_says_which_family_reads_a_shared_configuration(tmp_path, recipe):
    asked = tokenized(tmp_path / "source", "<|mask|>")
    config = json.loads((tmp_path / "source" / "config.json").read_text())
    path = recipe(
        family="a2d_bd3lm",
        config=config,
        profiles=[{"batch": 1, "block": 32, "cache": 64, "rows": 32}],
    )
    assert plan_export(replace(asked, recipe=path)).spec.family == "a2d_bd3lm"
    with pytest.raises(UsageError, match="is for a2d_bd3lm, the checkpoint is a2d"):
        plan_export(replace(asked, recipe=path, family="a2d"))


def test_an_adapter_adds_its_tensors(goldens, tmp_path):
    source = str(goldens / "nemotron_labs_diffusion")
    asked = ExportOptions(source, tmp_path / "bundle", tokenizer=False)
    alone = plan_export(asked)
    plan = plan_export(replace(asked, adapter="linear_spec_lora"))
    assert alone.adapter is None
    assert plan.adapter is not None
    assert plan.adapter.rank == plan.spec.denoiser.adapter_rank == 128
    assert plan.files.keys() - alone.files.keys() == {"weights/adapter_model.safetensors"}
    assert plan.parameters - alone.parameters == 2 * 2 * 128 * 64
    imagined = plan_export(replace(asked, adapter="linear_spec_lora", weights=False))
    assert imagined.parameters == plan.parameters


def test_an_adapter_replaces_no_tensor_of_the_checkpoint(goldens, tmp_path):
    nemotron = goldens / "nemotron_labs_diffusion"
    shutil.copytree(nemotron, tmp_path / "source")
    weights = tmp_path / "source" / "linear_spec_lora" / "adapter_model.safetensors"
    weights.chmod(0o644)
    tensors = load_file(weights)
    own = next(iter(load_file(nemotron / "model.safetensors").items()))
    save_file(tensors | dict([own]), weights)
    asked = ExportOptions(str(tmp_path / "source"), tmp_path / "bundle", tokenizer=False)
    with pytest.raises(CheckpointError, match="a tensor of the checkpoint itself"):
        plan_export(replace(asked, adapter="linear_spec_lora"))


def test_a_default_sampler_that_the_family_cannot_run(options, recipe):
    path = recipe(sampler={"name": "wino", "parameters": {}})
    with pytest.raises(RequestError, match="wino does not go with sdar"):
        plan_export(replace(options, recipe=path))


def test_an_adapter_that_does_not_fit(goldens, tmp_path, options):
    nemotron = goldens / "nemotron_labs_diffusion"
    with pytest.raises(UsageError, match="knows no adapters of sdar"):
        plan_export(replace(options, adapter=str(nemotron / "linear_spec_lora")))
    shutil.copytree(nemotron, tmp_path / "source")
    config = tmp_path / "source" / "linear_spec_lora" / "adapter_config.json"
    config.chmod(0o644)
    config.write_text(config.read_text().replace('"r": 128', '"r": 64'))
    asked = ExportOptions(str(tmp_path / "source"), tmp_path / "bundle", tokenizer=False)
    with pytest.raises(CheckpointError, match=r"4 of another shape .*lora_A.weight' \[128, 64\]"):
        plan_export(replace(asked, adapter="linear_spec_lora"))


def test_a_recipe_alone_has_no_adapter(tmp_path, recipe):
    asked = ExportOptions(
        None, tmp_path / "bundle", recipe=recipe(), weights=False, adapter="linear_spec_lora"
    )
    with pytest.raises(UsageError, match="a recipe alone has no adapter"):
        plan_export(asked)
