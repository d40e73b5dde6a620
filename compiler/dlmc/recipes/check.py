"""`dlmc recipes check`: what a recipe says must fit the family it names."""

from collections.abc import Callable, Iterator
from pathlib import Path

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.recipes.recipe import Recipe, read_recipe
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.samplers.config import SamplerConfig


def _name(recipe: Recipe, _: FamilySpec, path: Path) -> Iterator[str]:
    if recipe.name != path.stem:
        yield f"name: {recipe.name!r} differs from the file's"


def _sampler(recipe: Recipe, _: FamilySpec, __: Path) -> Iterator[str]:
    try:
        SamplerConfig().updated(name=recipe.sampler.name, **recipe.sampler.parameters)
    except DlmcError as error:
        yield f"sampler: {error}"


def _lengths(recipe: Recipe, spec: FamilySpec, _: Path) -> Iterator[str]:
    limits = {
        "candidates": (recipe.candidates, spec.denoiser.vocab_size),
        "max_new_tokens": (recipe.max_new_tokens, spec.max_position_embeddings),
    }
    for field, (value, most) in limits.items():
        if value > most:
            yield f"{field}: {value} exceeds the model's {most}"


def _profiles(recipe: Recipe, spec: FamilySpec, _: Path) -> Iterator[str]:
    for index, profile in enumerate(recipe.profiles):
        where = f"profiles.{index}"
        if spec.regime == "full" and profile.cache:
            yield f"{where}.cache: {spec.family} sees the whole sequence and has no exact cache"
        if profile.block < spec.block_length:
            yield f"{where}.block: a block has {spec.block_length} positions"
        if max(profile.block, profile.cache) > spec.max_position_embeddings:
            yield f"{where}: exceeds the model's {spec.max_position_embeddings} positions"
    if not any(profile.rows >= spec.block_length for profile in recipe.profiles):
        yield f"profiles: none has rows for a block of {spec.block_length}"


_RULES: tuple[Callable[[Recipe, FamilySpec, Path], Iterator[str]], ...] = (
    _name,
    _sampler,
    _lengths,
    _profiles,
)


def check_recipe(path: Path) -> list[str]:
    """Return every problem of a recipe file; an empty list means it is sound."""
    try:
        recipe = read_recipe(path)
        family = detect(recipe.config)
        if family.name != recipe.family:
            return [f"family: {recipe.family!r}, but config is of {family.name}"]
        spec = family.read(recipe.config, recipe.generation_config, Overrides())
    except DlmcError as error:
        return [str(error).removeprefix(f"{path}: ")]
    return [problem for rule in _RULES for problem in rule(recipe, spec, path)]
