"""`dlmc recipes check`: what a recipe says must fit the family it names."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dlmc.families import FamilySpec, Overrides, detect
from dlmc.recipes.recipe import Recipe, read_recipe
from dlmc.targets.options import BuildOptions, check_options
from dlmc.targets.sizes import cache_bytes, weight_bytes
from dlmc_runtime import legal
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.manifest import Head, Profile
from dlmc_runtime.samplers.config import SamplerConfig


def _name(recipe: Recipe, _: FamilySpec, path: Path) -> Iterator[str]:
    if recipe.name != path.stem:
        yield f"name: {recipe.name!r} differs from the file's"


def _sampler(recipe: Recipe, spec: FamilySpec, _: Path) -> Iterator[str]:
    try:
        config = SamplerConfig().updated(name=recipe.sampler.name, **recipe.sampler.parameters)
        head = Head(variant="plain", candidates=recipe.candidates)
        legal.check(config, legal.Planned(spec.family, spec.attention, head, spec.tokens))
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
    yield from _shapes("profiles", recipe.profiles, spec)


def _shapes(field: str, profiles: Sequence[Profile], spec: FamilySpec) -> Iterator[str]:
    for index, profile in enumerate(profiles):
        where = f"{field}.{index}"
        if spec.regime == "full" and 0 < profile.cache < profile.block:
            yield f"{where}.cache: it keeps the whole sequence, at least the block's positions"
        if profile.block < spec.rows_in(profile):
            yield f"{where}.block: a block has {spec.block_length} positions"
        if max(profile.block, profile.cache) > spec.max_position_embeddings:
            yield f"{where}: exceeds the model's {spec.max_position_embeddings} positions"
    if not any(profile.rows >= spec.rows_in(profile) for profile in profiles):
        yield f"{field}: none has rows for a block of {spec.block_length}"


def _targets(recipe: Recipe, spec: FamilySpec, _: Path) -> Iterator[str]:
    for index, target in enumerate(recipe.targets):
        where = f"targets.{index}"
        options = BuildOptions(precision=target.precision, quantization=target.quantization)
        try:
            check_options(target.target, options)
        except DlmcError as error:
            yield f"{where}: {error}"
            continue
        if target.profiles:
            yield from _shapes(f"{where}.profiles", target.profiles, spec)
        needed = weight_bytes(spec.denoiser, target.precision, target.quantization)
        needed += max(
            cache_bytes(spec.denoiser, profile, target.precision)
            for profile in target.profiles or recipe.profiles
        )
        if target.device_memory is not None and needed > target.device_memory << 30:
            yield (
                f"{where}: weights and caches take {needed / (1 << 30):.1f} GiB, "
                f"the device has {target.device_memory}"
            )


_RULES: tuple[Callable[[Recipe, FamilySpec, Path], Iterator[str]], ...] = (
    _name,
    _sampler,
    _lengths,
    _profiles,
    _targets,
)


def check_recipe(path: Path) -> list[str]:
    """Return every problem of a recipe file; an empty list means it is sound."""
    try:
        recipe = read_recipe(path)
        family = detect(recipe.config, prefer=recipe.family)
        if family.name != recipe.family:
            return [f"family: {recipe.family!r}, but config is of {family.name}"]
        spec = family.read(recipe.config, recipe.generation_config, Overrides())
    except DlmcError as error:
        return [str(error).removeprefix(f"{path}: ")]
    return [problem for rule in _RULES for problem in rule(recipe, spec, path)]
