"""Tensors against parameters, on the golden packs' own weights and damaged copies."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dlmc.checkpoint import Checkpoint, Stack, TensorLocation, check_weights, expected_shapes
from dlmc.families import Family, FamilySpec, Overrides, detect
from dlmc_runtime.errors import CheckpointError

PACKS = ("llada", "llada_gqa", "sdar")
Opened = tuple[Family, FamilySpec, Checkpoint]


def open_pack(root: Path) -> Opened:
    checkpoint = Checkpoint.open(root, tokenizer=False)
    family = detect(checkpoint.config)
    spec = family.read(checkpoint.config, checkpoint.generation_config, Overrides())
    return family, spec, checkpoint


def with_tensors(opened: Opened, changes: Mapping[str, TensorLocation | None]) -> Opened:
    """Add or replace tensors, or drop those that are None."""
    family, spec, checkpoint = opened
    merged = {**checkpoint.tensors, **changes}
    kept = {name: where for name, where in merged.items() if where is not None}
    return family, spec, replace(checkpoint, tensors=kept)


@pytest.fixture
def llada(goldens: Path) -> Opened:
    return open_pack(goldens / "llada")


@pytest.mark.parametrize("pack", PACKS)
def test_golden_packs(goldens: Path, pack: str):
    family, spec, checkpoint = open_pack(goldens / pack)
    found = check_weights(family, spec, checkpoint)
    assert {name: where.shape for name, where in found.items()} == expected_shapes(spec)
    assert len(set(found.values())) == len(checkpoint.tensors)


@pytest.fixture
def llada2(goldens: Path) -> Opened:
    checkpoint = Checkpoint.open(goldens / "llada2", tokenizer=False)
    family = detect(checkpoint.config)
    return family, family.read(checkpoint.config, {}, Overrides(mask_id=316)), checkpoint


EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"


def test_experts_are_stacked(llada2: Opened):
    found = check_weights(*llada2)
    assert {name: where.shape for name, where in found.items()} == expected_shapes(llada2[1])
    stack = found["layers.1.mlp.experts.gate_up_proj"]
    assert isinstance(stack, Stack)
    assert stack.parts[7] == llada2[2].tensors[EXPERT]
    assert (stack.dtype, stack.length) == ("F32", 4 * 16 * 48 * 64)


def test_experts_that_do_not_fit(llada2: Opened):
    tensor = llada2[2].tensors[EXPERT]
    with pytest.raises(CheckpointError, match=r"1 missing .*experts\.3\.up_proj"):
        check_weights(*with_tensors(llada2, {EXPERT: None}))
    more = EXPERT.replace("experts.3", "experts.16")
    with pytest.raises(CheckpointError, match=r"1 left over .*experts.16"):
        check_weights(*with_tensors(llada2, {more: tensor}))
    turned = replace(tensor, shape=tensor.shape[::-1])
    with pytest.raises(
        CheckpointError, match=r"1 of another shape .*\[64, 24\] instead of \[24, 64"
    ):
        check_weights(*with_tensors(llada2, {EXPERT: turned}))
    low = replace(tensor, dtype="BF16")
    with pytest.raises(CheckpointError, match="1 of another dtype than the experts before"):
        check_weights(*with_tensors(llada2, {EXPERT: low}))


def test_a_tied_head_may_be_stored_again(goldens: Path):
    opened = open_pack(goldens / "llada_gqa")
    embedding = opened[2].tensors["model.transformer.wte.weight"]
    family, spec, checkpoint = with_tensors(opened, {"model.transformer.ff_out.weight": embedding})
    assert "lm_head.weight" not in check_weights(family, spec, checkpoint)


def test_missing(llada: Opened):
    gone = dict.fromkeys(["model.transformer.ln_f.weight", "model.transformer.wte.weight"])
    with pytest.raises(CheckpointError, match="2 missing") as caught:
        check_weights(*with_tensors(llada, gone))
    assert all(name in caught.value.message for name in gone)


def test_left_over_names_are_few(llada: Opened):
    any_tensor = next(iter(llada[2].tensors.values()))
    extra = {f"model.extra.{index}": any_tensor for index in range(20)}
    with pytest.raises(CheckpointError, match="20 left over") as caught:
        check_weights(*with_tensors(llada, extra))
    assert caught.value.message.count("model.extra.") == 5


def test_shapes(llada: Opened):
    name = "model.transformer.blocks.0.q_proj.weight"
    other = replace(llada[2].tensors[name], shape=(64, 32))
    with pytest.raises(
        CheckpointError, match=r"1 of another shape .*\[64, 32\] instead of \[64, 64\]"
    ):
        check_weights(*with_tensors(llada, {name: other}))


@pytest.mark.parametrize("dtype", ["I8", "F64", "F8_E4M3"])
def test_dtypes(llada: Opened, dtype: str):
    name = "model.transformer.wte.weight"
    other = replace(llada[2].tensors[name], dtype=dtype)
    with pytest.raises(CheckpointError, match=f"1 of a dtype other than F32, F16, BF16 .*{dtype}"):
        check_weights(*with_tensors(llada, {name: other}))


def test_one_error_tells_everything(llada: Opened):
    any_tensor = next(iter(llada[2].tensors.values()))
    changes = {"model.transformer.ln_f.weight": None, "evil\n\x1b[31m": any_tensor}
    with pytest.raises(CheckpointError, match=r"1 missing .*; 1 left over") as caught:
        check_weights(*with_tensors(llada, changes))
    assert str(caught.value).isprintable()
