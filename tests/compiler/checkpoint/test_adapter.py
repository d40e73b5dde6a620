import json
from pathlib import Path
from typing import Any

import pytest

from dlmc.checkpoint import parse_adapter, read_adapter
from dlmc.families import FAMILIES, Overrides
from dlmc.families.nemotron_labs_diffusion import NEMOTRON_LABS_DIFFUSION
from dlmc.families.sdar import SDAR
from dlmc_runtime.errors import CheckpointError, UsageError

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 128,
    "lora_alpha": 512,
    "lora_dropout": 0.0,
    "target_modules": ["o_proj"],
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "inference_mode": True,
}
FOLDER = "linear_spec_lora"


def test_golden_adapter(goldens: Path):
    adapter = read_adapter(goldens / "nemotron_labs_diffusion", FOLDER)
    assert (adapter.rank, adapter.scale) == (128, 4.0)
    name = "base_model.model.encoder.layers.1.self_attn.o_proj.lora_A.weight"
    assert adapter.tensors[name].shape == (128, 64)
    assert len(adapter.tensors) == 4


def test_a_folder_elsewhere_and_no_weights(goldens: Path, tmp_path: Path):
    path = goldens / "nemotron_labs_diffusion" / FOLDER
    assert read_adapter(tmp_path, str(path)).rank == 128
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "adapter_config.json").write_text(json.dumps(CONFIG))
    assert read_adapter(tmp_path, "mine", weights=False).tensors == {}
    with pytest.raises(CheckpointError, match=r"mine has no adapter_model\.safetensors"):
        read_adapter(tmp_path, "mine")


def test_no_such_folder(tmp_path: Path):
    with pytest.raises(CheckpointError, match="there is no adapter lora in"):
        read_adapter(tmp_path, "lora")
    (tmp_path / "lora").mkdir()
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        read_adapter(tmp_path, "lora")


def test_a_rooted_scale():
    assert parse_adapter({**CONFIG, "r": 16, "use_rslora": True}).scale == 128.0


def test_one_target_as_a_word():
    assert parse_adapter({**CONFIG, "target_modules": "o_proj"}).rank == 128


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"peft_type": "IA3"}, "'peft_type' is \"IA3\""),
        ({"peft_type": None}, "'peft_type' is null"),
        ({"target_modules": ["q_proj"]}, "'target_modules' is .*adapters of o_proj only"),
        ({"target_modules": ["o_proj", "q_proj"]}, "'target_modules' is"),
        ({"target_modules": None}, "'target_modules' is None"),
        ({"bias": "all"}, "'bias' is \"all\""),
        ({"use_dora": True}, "'use_dora' is true"),
        ({"fan_in_fan_out": True}, "'fan_in_fan_out' is true"),
        ({"rank_pattern": {"o_proj": 3}}, "'rank_pattern' is not empty"),
        ({"alpha_pattern": {"o_proj": 3}}, "'alpha_pattern' is not empty"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is"),
        ({"exclude_modules": ["x"]}, "'exclude_modules' is not empty"),
        ({"layer_replication": [[0, 1]]}, "'layer_replication' is not empty"),
        ({"layers_pattern": "x"}, "'layers_pattern' is not empty"),
        ({"trainable_token_indices": [1]}, "'trainable_token_indices' is not empty"),
        ({"r": 0}, "'r' is 0"),
        ({"r": 1 << 20}, "'r' is 1048576"),
        ({"lora_alpha": 0}, "'lora_alpha' is 0"),
        ({"use_rslora": 1}, "'use_rslora' is 1"),
    ],
)
def test_adapters_of_another_kind(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=rf"adapter_config\.json: {sentence}"):
        parse_adapter({**CONFIG, **changes})


def test_it_becomes_part_of_the_network(goldens: Path):
    config = json.loads((goldens / "nemotron_labs_diffusion" / "config.json").read_text())
    spec = NEMOTRON_LABS_DIFFUSION.read(config, {}, Overrides())
    denoiser = parse_adapter(CONFIG).applied(NEMOTRON_LABS_DIFFUSION, spec).denoiser
    assert (denoiser.adapter_rank, denoiser.adapter_scale) == (128, 4.0)
    with pytest.raises(UsageError, match="knows no adapters of sdar checkpoints"):
        parse_adapter(CONFIG).applied(SDAR, spec)


def test_one_family_has_adapters():
    assert [family.name for family in FAMILIES if family.takes_adapter] == [
        "nemotron_labs_diffusion"
    ]
