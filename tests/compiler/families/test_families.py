"""Which family a configuration belongs to."""

import pytest

from dlmc.families import FAMILIES, detect
from dlmc_runtime.errors import CheckpointError, UsageError

LLADA = {"architectures": ["LLaDAModelLM"], "d_model": 64, "n_layers": 2, "n_heads": 4}


def test_by_architecture_and_keys():
    assert detect(LLADA).name == "llada"
    assert detect({**LLADA, "num_experts": None}).name == "llada"


def test_names_are_unique():
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_a_preference_decides_between_those_that_match_only():
    assert detect(LLADA, prefer="sdar").name == "llada"


def test_override_settles_it():
    assert detect({}, "sdar").name == "sdar"
    assert detect(LLADA, "sdar").name == "sdar"


def test_unknown_override_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown family 'lada': use llada or llada2$"):
        detect(LLADA, "lada")
    with pytest.raises(UsageError, match="use llada or illada or dream or sdar"):
        detect(LLADA, "???")


@pytest.mark.parametrize("stated", [None, [], "LLaDAModelLM", [3], {}])
def test_no_architecture(stated: object):
    with pytest.raises(CheckpointError, match="'architectures' names no network: state --family"):
        detect({"architectures": stated})


def test_unknown_architecture_names_nearest_and_known():
    with pytest.raises(CheckpointError, match="unknown architecture 'SDARForMaskedLM'") as caught:
        detect({"architectures": ["SDARForMaskedLM"]})
    assert "nearest: sdar" in caught.value.message
    assert "--family llada or illada or dream" in caught.value.hint


@pytest.mark.parametrize(
    "architecture",
    [
        "WeDLMForCausalLM",
        "DreamForCausalLM",
        "IDLMForCausalLM",
        "Qwen3ForCausalLM",
    ],
)
def test_relatives_that_dlmc_does_not_read(architecture: str):
    config = {"architectures": [architecture], "hidden_size": 64, "num_hidden_layers": 2}
    with pytest.raises(CheckpointError, match=f"unknown architecture '{architecture}'"):
        detect(config)


def test_mixture_of_experts_under_a_dense_name():
    moe = {"architectures": ["LLaDAModelLM"], "hidden_size": 64, "num_experts": 8}
    with pytest.raises(CheckpointError, match=r"no 'd_model', .*, has 'num_experts'"):
        detect(moe)
