"""Writing a trained denoiser as the Hugging Face checkpoint its recipe describes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dlmc import families
from dlmc.denoiser.network import Network
from dlmc.recipes import Recipe
from vocabulary import Vocabulary


def read_spec(recipe: Recipe) -> families.FamilySpec:
    """Return what the recipe's family makes of its configuration."""
    family = families.detect(recipe.config, recipe.family)
    return family.read(recipe.config, recipe.generation_config, families.Overrides())


def write_checkpoint(
    denoiser: Network, recipe: Recipe, vocabulary: Vocabulary, output: Path
) -> None:
    """Write weights in bfloat16 under the family's names, with configuration and tokenizer."""
    names = families.detect(recipe.config, recipe.family).weight_names(read_spec(recipe))
    parameters = dict(denoiser.named_parameters())
    weights = {
        theirs: parameters[ours].detach().to(torch.bfloat16).contiguous()
        for ours, theirs in names.items()
    }
    output.mkdir(parents=True, exist_ok=True)
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
    vocabulary.tokenizer().save(str(output / "tokenizer.json"))
    _write(output / "config.json", {**recipe.config, "torch_dtype": "bfloat16"})
    _write(output / "generation_config.json", dict(recipe.generation_config))
    _write(output / "tokenizer_config.json", vocabulary.tokenizer_config())


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
