"""Bundles of both families with random weights, exported and built once a session."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.families import detect
from dlmc.recipes import load
from dlmc.synth import Blueprint, Scale, write_checkpoint
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle

RECIPES = {"llada": "llada-8b-instruct", "sdar": "sdar-1.7b-chat"}
REQUESTS = {
    "llada": ProfileRequest(batch=(1, 4), block=40, rows=16),
    "sdar": ProfileRequest(batch=(1, 4), cache=40, prefill=16),
}


def confident(path):
    """Replace tiny random weights by ones whose predictions are sure and differ."""
    torch.manual_seed(0)
    tensors = load_file(path)
    for name, tensor in sorted(tensors.items()):
        if tensor.dim() == 2:
            tensor.normal_(0, 2.0 / tensor.shape[1] ** 0.5)
        if "q_norm" in name:
            tensor.fill_(4.0)
        if "embed_tokens" in name or "wte" in name:
            tensor.normal_(0, 1.0)
            tensor[-1] *= 0.05  # the mask
    save_file(tensors, path)


def export(folder, family, variant):
    recipe = load(RECIPES[family])
    scale = Scale(layers=2, hidden=32, heads=4, kv_heads=2, vocab=300, positions=64)
    kind = detect(recipe.config)
    made = Blueprint.of(kind, recipe.config, recipe.generation_config, scale)
    assert made.spec.mask_id == made.spec.denoiser.vocab_size - 1
    write_checkpoint(made, folder / "checkpoint", dtype="float32")
    confident(folder / "checkpoint" / "model.safetensors")
    root = folder / "bundle"
    export_checkpoint(
        ExportOptions(source=str(folder / "checkpoint"), output=root, variant=variant)
    )
    return Bundle.open(root)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Return the bundle of a family, with an engine for a target and a variant of the head."""
    made = {}

    def get(family, target="onnxruntime-cpu", variant="plain"):
        key = family, variant
        if key not in made:
            made[key] = export(tmp_path_factory.mktemp(family), family, variant)
        if target not in made[key].engine_names():
            build_engine(plan_build(made[key].root, target, REQUESTS[family]))
        return made[key]

    return get


@pytest.fixture(scope="session")
def prompts():
    """A few prompts of different lengths, as ids."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, size).tolist() for size in (1, 3, 4, 9, 17)]
