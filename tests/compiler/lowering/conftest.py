"""Bundles of the tiny checkpoints, and states of short generations with them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlmc.checkpoint.random_weights import random_weights
from dlmc.checkpoint.safetensors_writer import TensorPlan, write_safetensors
from dlmc.checkpoint.weights import expected_shapes
from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.families.sdar import SDAR
from dlmc.families.spec import Overrides
from dlmc.lowering.calibrate import Feeds
from dlmc.lowering.states import record_states
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import HeadVariant

PROMPTS = ("12+7=?", "sort 3 1 2 9")


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Callable[..., Bundle]:
    """Export a tracked checkpoint by name."""

    def make(name: str, candidates: int = 8, variant: HeadVariant = "plain") -> Bundle:
        root, source = tmp_path_factory.mktemp("bundles") / name, repository / "artifacts" / name
        export_checkpoint(ExportOptions(str(source), root, candidates=candidates, variant=variant))
        return Bundle.open(root)

    return make


@pytest.fixture(scope="session")
def sdar(export: Callable[..., Bundle]) -> Bundle:
    """The tiny SDAR: with a cache, and norms of queries and keys."""
    return export("tiny-sdar")


@pytest.fixture(scope="session")
def guided(export: Callable[..., Bundle], repository: Path) -> Bundle:
    """The tiny SDAR with a guided head that hands out every token but the mask."""
    config = json.loads((repository / "artifacts" / "tiny-sdar" / "config.json").read_text())
    return export("tiny-sdar", config["vocab_size"] - 1, "guided")


@pytest.fixture(scope="session")
def llada(export: Callable[..., Bundle]) -> Bundle:
    """The tiny LLaDA: without a cache."""
    return export("tiny-llada")


def states_of(bundle: Bundle, shapes: ProfileRequest) -> list[Feeds]:
    build_engine(plan_build(bundle.root, "onnxruntime-cpu", shapes))
    with Generator.load(bundle.root) as generator:
        # One position a forward, so that every noise level occurs.
        sampler = replace(generator.sampler, threshold=None)
        requests = [
            generator.request(prompt, max_new_tokens=16, sampler=sampler, ignore_eos=True)
            for prompt in PROMPTS
        ]
        return record_states(generator, requests)


@pytest.fixture(scope="session")
def sdar_states(sdar: Bundle) -> list[Feeds]:
    """Forwards of two prompts at several noise levels."""
    return states_of(sdar, ProfileRequest(batch=(1,), cache=64, prefill=16))


@pytest.fixture(scope="session")
def llada_states(llada: Bundle) -> list[Feeds]:
    """The same for the tiny LLaDA."""
    return states_of(llada, ProfileRequest(batch=(1,), block=48, rows=16))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """One random layer whose weights weigh more than an engine's code."""
    folder = tmp_path_factory.mktemp("wide")
    config = {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        "torch_dtype": "bfloat16",
        "block_size": 8,
        "eos_token_id": 5,
        "pad_token_id": 5,
        "mask_token_id": 7,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "max_position_embeddings": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 300,
    }
    source = folder / "checkpoint"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    spec = SDAR.read(config, {}, Overrides())
    names = SDAR.weight_names(spec)
    plans = [TensorPlan(names[n], "BF16", shape) for n, shape in expected_shapes(spec).items()]
    write_safetensors(source / "model.safetensors", plans, random_weights(0))
    export_checkpoint(ExportOptions(str(source), folder / "bundle", tokenizer=False, candidates=8))
    return Bundle.open(folder / "bundle")
