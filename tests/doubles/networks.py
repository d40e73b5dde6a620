"""A small network of every family, as a bundle: whatever its recipe says, at a tiny scale."""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from dlmc.export.options import ExportOptions
from dlmc.export.pipeline import export_checkpoint
from dlmc.families import FAMILIES
from dlmc.families.spec import Family
from dlmc.recipes import load
from dlmc.synth import Blueprint, Scale, write_checkpoint
from dlmc_runtime.manifest import HeadVariant

TARGETS = ("onnxruntime-cpu", "openvino-cpu")  # built and run
AHEAD = "tensorrt-rtx"  # built for a GPU that need not be here
POSITIONS = 96
RANK, ALPHA = 4, 8
_SCALE = Scale(layers=3, hidden=64, heads=4, kv_heads=2, vocab=320, positions=POSITIONS)


@dataclass(frozen=True)
class Network:
    """What to make a bundle of: a recipe, what is otherwise in its configuration, and a head."""

    family: str
    recipe: str
    scale: Scale = _SCALE
    changes: Callable[[dict[str, Any]], Any] = lambda config: None
    variant: HeadVariant = "plain"
    adapter: bool = False
    generation: Mapping[str, int] = field(default_factory=dict)


def _short_window(config: dict[str, Any]) -> None:
    config["local_attention"] = 16  # shorter than what is generated


def _short_yarn(config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    rope["original_max_position_embeddings"] = 16  # queries grow within what is generated
    config["block_size"] = 8


def _short_canvas(config: dict[str, Any]) -> None:
    config["canvas_length"] = 8
    text = config["text_config"]
    text["sliding_window"] = 12  # shorter than what is generated
    text["global_head_dim"], text["num_global_key_value_heads"] = 32, 1
    config["vision_config"] = None


def _routed_blocks(config: dict[str, Any]) -> None:
    config["block_size"] = 8
    config["num_experts_per_tok"] = 2
    config["expert_capacity"] = 4  # of 8


# 7 layers are the first and two periods of ModernBERT.
_ENCODER = Scale(layers=7, hidden=64, heads=4, vocab=320, positions=POSITIONS)
_MULTIPLE_HEADS = Scale(layers=3, hidden=64, heads=4, kv_heads=4, vocab=320, positions=POSITIONS)
_EXPERTS = replace(_SCALE, experts=8, top_k_experts=2, expert_intermediate=16)
NETWORKS: dict[str, Network] = {
    "llada": Network("llada", "llada-8b-instruct", _MULTIPLE_HEADS),
    "illada": Network("illada", "illada-8b-instruct"),
    "dream": Network("dream", "dreamon-v0-7b"),  # spans may grow
    "sdar": Network("sdar", "sdar-1.7b-chat"),
    "a2d": Network("a2d", "qwen3-0.6b-diffusion-mdlm"),
    "a2d_bd3lm": Network("a2d_bd3lm", "qwen2.5-coder-0.5b-instruct-diffusion-bd3lm"),
    "fast_dllm_v2": Network("fast_dllm_v2", "fast-dllm-v2-1.5b"),
    "nemotron_labs_diffusion": Network(
        "nemotron_labs_diffusion", "nemotron-labs-diffusion-3b", changes=_short_yarn, adapter=True
    ),
    "stable_diffcoder": Network("stable_diffcoder", "stable-diffcoder-8b-instruct"),
    "coda": Network("coda", "coda-v0-instruct"),
    "modernbert": Network("modernbert", "modernbert-base-chat", _ENCODER, _short_window),
    # What a random network expects of a step magnifies rounding about tenfold in the next one.
    "diffusion_gemma": Network(
        "diffusion_gemma",
        "diffusiongemma-26b-a4b-it",
        _EXPERTS,
        _short_canvas,
        generation={"max_denoising_steps": 2},
    ),
    "llada2": Network("llada2", "llada2.1-mini", _EXPERTS),
    "llada_moe": Network("llada_moe", "llada-moe-7b-a1b-instruct", _EXPERTS),
    "sdar_moe": Network("sdar_moe", "sdar-30b-a3b-chat", _EXPERTS),
    "rnd1": Network("rnd1", "rnd1-base-0910", _EXPERTS),
    "llada2, by block": Network("llada2", "llada2.2-mini", _EXPERTS, _routed_blocks),
    "llada, guided": Network("llada", "llada-8b-instruct", _MULTIPLE_HEADS, variant="guided"),
    "sdar, guided": Network("sdar", "sdar-1.7b-chat", variant="guided"),
}


def family_of(network: Network) -> Family:
    """Return the family of a network."""
    return next(family for family in FAMILIES if family.name == network.family)


def write(network: Network, folder: Path) -> Path:
    """Write a checkpoint below ``folder`` and export it; return the bundle."""
    recipe, family = load(network.recipe), family_of(network)
    config = json.loads(json.dumps(recipe.config))
    network.changes(config)
    generation = {**recipe.generation_config, **network.generation}
    made = Blueprint.of(family, config, generation, network.scale)
    checkpoint = folder / "checkpoint"
    write_checkpoint(made, checkpoint, dtype="float32")
    _redraw(checkpoint / "model.safetensors")
    if network.adapter:
        _write_adapter(made, checkpoint / "lora")
    options = ExportOptions(
        source=str(checkpoint),
        output=folder / "bundle",
        family=network.family,
        variant=network.variant,
        adapter="lora" if network.adapter else None,
    )
    return export_checkpoint(options)


def _drawn(name: str, shape: tuple[int, ...]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return np.float32(0.1) * drawn + np.float32("bias" not in name)
    return drawn * np.float32(1.5 / shape[1] ** 0.5)


def _redraw(path: Path) -> None:
    """Draw weights of a size at which every part of the network, biases too, has a say."""
    values = {name: _drawn(name, value.shape) for name, value in load_file(path).items()}
    save_file(values, path)


def _write_adapter(made: Blueprint, folder: Path) -> None:
    """Write a random adapter in the layout of PEFT."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    denoiser = made.spec.denoiser
    wide = denoiser.num_attention_heads * denoiser.head_dim
    shapes = {"a.weight": (RANK, wide), "b.weight": (denoiser.hidden_size, RANK)}
    save_file(
        {
            name: _drawn(name, shapes[part])
            for template, stem in made.family.weights.items()
            if (part := template.partition("o_adapter.")[2])
            for name in (stem.format(i=i) for i in range(denoiser.num_hidden_layers))
        },
        folder / "adapter_model.safetensors",
    )


def plain() -> Iterator[str]:
    """Yield the networks that are a family's own, one for each."""
    return (name for name, network in NETWORKS.items() if name == network.family)
