"""`dlmc synth`: write a random checkpoint in the shape of a recipe."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dlmc.cli.console import say

if TYPE_CHECKING:
    from dlmc.denoiser.config import DenoiserConfig

Size = Annotated[
    int | None, typer.Option(min=1, show_default=False, help="As in the recipe where not given.")
]


def command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name or file of a recipe.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Checkpoint folder to write.")],
    layers: Size = None,
    hidden: Size = None,
    intermediate: Size = None,
    heads: Size = None,
    kv_heads: Size = None,
    head_dim: Size = None,
    vocab: Size = None,
    positions: Size = None,
    experts: Size = None,
    top_k_experts: Size = None,
    expert_intermediate: Size = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"], typer.Option(help="Type of the weights.")
    ] = "bfloat16",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same weights.")] = 0,
) -> None:
    """Write a random checkpoint with the exact keys, names and shapes of a recipe.

    Sizes can be scaled down to try a shape quickly; those not given follow the others.
    """
    from dlmc import families, recipes, synth

    chosen = recipes.load(recipe)
    family = families.detect(chosen.config, chosen.family)
    scale = synth.Scale(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        positions=positions,
        experts=experts,
        top_k_experts=top_k_experts,
        expert_intermediate=expert_intermediate,
    )
    blueprint = synth.Blueprint.of(family, chosen.config, chosen.generation_config, scale)
    shape = blueprint.spec.denoiser
    weights = sum(math.prod(tensor.shape) for tensor in blueprint.tensors(dtype))
    say(
        f"{family.name}: {shape.num_hidden_layers} layers x {shape.hidden_size},"
        f" {shape.num_attention_heads}/{shape.num_key_value_heads} heads of {shape.head_dim},"
        f" feed-forward {shape.intermediate_size}{_experts(shape)}, vocabulary {shape.vocab_size},"
        f" {weights:,} weights in {dtype}, seed {seed}"
    )
    synth.write_checkpoint(blueprint, output, dtype=dtype, seed=seed)
    say(f"wrote {output}")


def _experts(shape: "DenoiserConfig") -> str:
    """Return the experts of a layer in words, empty where there are none."""
    if not shape.num_experts:
        return ""
    return f", {shape.experts_per_token} of {shape.num_experts} experts of {shape.expert_width}"
