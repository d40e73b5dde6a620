"""Everything about an export that can be decided and checked before anything is written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlmc.checkpoint import (
    Adapter,
    Checkpoint,
    ResolvedCheckpoint,
    Weight,
    check_weights,
    expected_shapes,
    read_adapter,
    resolve,
    token_id,
)
from dlmc.checkpoint.safetensors_writer import TensorPlan
from dlmc.export.bundle_writer import check_output
from dlmc.export.defaults import TOLERANCES, default_profiles
from dlmc.export.options import ExportOptions
from dlmc.export.stacking import own_files, referenced
from dlmc.export.text import Text, read_text
from dlmc.export.weights import FOLDER, files_of, imagine_weights
from dlmc.families import Family, FamilySpec, Overrides, detect
from dlmc.recipes import Recipe, load
from dlmc.targets.profiles import check_routing
from dlmc_runtime import legal
from dlmc_runtime.errors import CheckpointError, UsageError
from dlmc_runtime.manifest import Head, Profile, SamplerSpec, TargetSpec, Tolerance
from dlmc_runtime.samplers.config import SamplerConfig


@dataclass(frozen=True)
class ExportPlan:
    """What an export will make.

    Attributes:
        options: what was asked for.
        source: hub id, or name (not path) of the checkpoint's folder.
        revision: commit of the hub repository.
        recipe: name of the recipe.
        config: contents of ``config.json``, without paths of the machine that wrote it.
        spec: the checkpoint as its family understands it, overrides applied.
        adapter: what each row can switch on; None without such.
        suppressed: ids the graph never predicts, sorted.
        weights: where the values of every parameter lie; only imagined if
            ``options.weights`` is false.
        text: tokenizer and chat template.
        profiles: shapes to build by default.
        sampler: default sampler.
        max_new_tokens: default length of an answer.
        tolerances: by output.
        targets: what to build for a target by default.
        warnings: what looks odd but may be meant.
    """

    options: ExportOptions
    source: str
    revision: str | None
    recipe: str | None
    config: Mapping[str, Any]
    spec: FamilySpec
    adapter: Adapter | None
    suppressed: tuple[int, ...]
    weights: Mapping[str, Weight]
    text: Text | None
    profiles: tuple[Profile, ...]
    sampler: SamplerSpec
    max_new_tokens: int
    tolerances: Mapping[str, Tolerance]
    targets: tuple[TargetSpec, ...]
    warnings: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """How many weights the denoiser has."""
        return sum(math.prod(location.shape) for location in self.weights.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights of the denoiser take in the checkpoint."""
        return sum(location.length for location in self.weights.values())

    @property
    def files(self) -> dict[str, Path]:
        """Files of weights to link, by their path in the bundle."""
        return files_of(referenced(self.weights)) if self.options.weights else {}

    @property
    def own_files(self) -> dict[str, tuple[TensorPlan, ...]]:
        """Files of weights to write, by their path in the bundle, and what each will hold."""
        found = own_files(self.weights) if self.options.weights else {}
        return {f"{FOLDER}/{name}": tensors for name, tensors in found.items()}


def plan_export(options: ExportOptions) -> ExportPlan:
    """Check an export and decide everything that it leaves open; write nothing.

    A hub id is downloaded first, with the weights where the bundle is to hold them, because only
    they tell whether they fit.

    Raises:
        UsageError: the options contradict each other or the checkpoint, or the output exists.
        CheckpointError: the checkpoint is not what its family says it is.
    """
    check_output(options.output, force=options.force)
    recipe = load(options.recipe) if options.recipe else None
    checkpoint, resolved = _open(options, recipe)
    family = _family(options, recipe, checkpoint.config)
    overrides = _overrides(options, recipe, _mask_id(options, family, checkpoint))
    spec = family.read(checkpoint.config, checkpoint.generation_config, overrides)
    _check_attention(options, recipe, spec)
    adapter = _adapter(options, checkpoint, resolved)
    if adapter is not None:
        spec = adapter.applied(family, spec)
        shared = sorted(checkpoint.tensors.keys() & adapter.tensors.keys())
        if shared:
            raise CheckpointError(
                f"the adapter holds {shared[0][:120]!r}, a tensor of the checkpoint itself",
                "give an adapter of the output projections alone",
            )
        checkpoint = replace(checkpoint, tensors={**checkpoint.tensors, **adapter.tensors})
    suppressed = _suppressed(options, spec)
    sampler = recipe.sampler if recipe else spec.sampler
    _check_sampler(options, spec, sampler)
    wanted = options.tokenizer and resolved is not None  # a recipe has no tokenizer
    text = read_text(checkpoint, spec.denoiser.vocab_size) if wanted else None
    return ExportPlan(
        options=options,
        source=_name_source(resolved, recipe),
        revision=resolved.revision if resolved else None,
        recipe=recipe.name if recipe else None,
        config=_public(checkpoint.config),
        spec=spec,
        adapter=adapter,
        suppressed=suppressed,
        weights=check_weights(family, spec, checkpoint)
        if options.weights
        else imagine_weights(expected_shapes(spec), checkpoint.config),
        text=text,
        profiles=_profiles(recipe, spec),
        sampler=sampler,
        max_new_tokens=spec.max_new_tokens,
        tolerances=TOLERANCES | (recipe.tolerances if recipe else {}),
        targets=_targets(recipe, spec),
        warnings=_warnings(spec, suppressed, text),
    )


def _open(
    options: ExportOptions, recipe: Recipe | None
) -> tuple[Checkpoint, ResolvedCheckpoint | None]:
    """Open the checkpoint, or imagine one from a recipe where its configuration is enough."""
    if options.source is None and recipe is None:
        raise UsageError("there is nothing to export", "give a checkpoint or a --recipe")
    if options.source is None and recipe and not options.weights:
        config, generation = recipe.config, recipe.generation_config
        return Checkpoint(Path(), config, generation_config=generation), None
    source = recipe.source if options.source is None and recipe else options.source
    if source is None:
        raise UsageError(
            f"recipe {options.recipe} names no checkpoint", "give one, or pass --no-weights"
        )
    resolved = resolve(source, options.revision, weights=options.weights, adapter=options.adapter)
    opened = Checkpoint.open(resolved.path, weights=options.weights, tokenizer=options.tokenizer)
    return opened, resolved


def _family(options: ExportOptions, recipe: Recipe | None, config: Mapping[str, Any]) -> Family:
    family = detect(config, options.family, prefer=recipe.family if recipe else None)
    if recipe and recipe.family != family.name:
        raise UsageError(
            f"recipe {options.recipe} is for {recipe.family}, the checkpoint is {family.name}",
            "leave out --recipe or give another",
        )
    return family


def _check_attention(options: ExportOptions, recipe: Recipe | None, spec: FamilySpec) -> None:
    """Refuse shapes of a recipe that are for another attention than the one that is stated."""
    if recipe is None or options.attention is None:
        return
    cached = all(profile.cache for profile in recipe.profiles)
    if cached == (spec.regime == "full"):
        raise UsageError(
            f"recipe {recipe.name} has no shapes for the attention {spec.regime}",
            "leave out --recipe or --attention",
        )


def _mask_id(options: ExportOptions, family: Family, checkpoint: Checkpoint) -> int | None:
    """Return the mask id as stated, or as the tokenizer knows it where no configuration does."""
    config, text = checkpoint.config, family.mask_text
    if options.mask_id is not None or text is None or config.get("mask_token_id") is not None:
        return options.mask_id
    found, vocab_size = token_id(checkpoint, text), config.get("vocab_size")
    if found is not None and isinstance(vocab_size, int) and found >= vocab_size:
        raise CheckpointError(
            f"the tokenizer's {text} has the id {found}, the model knows ids below {vocab_size}",
            "state the mask with --mask-id",
        )
    return found


def _adapter(
    options: ExportOptions, checkpoint: Checkpoint, resolved: ResolvedCheckpoint | None
) -> Adapter | None:
    if options.adapter is None:
        return None
    if resolved is None:
        raise UsageError(
            "a recipe alone has no adapter", "give a checkpoint, or leave out --adapter"
        )
    return read_adapter(checkpoint.root, options.adapter, weights=options.weights)


def _overrides(options: ExportOptions, recipe: Recipe | None, mask_id: int | None) -> Overrides:
    candidates = options.candidates
    if candidates is None and recipe:
        candidates = recipe.candidates
    return Overrides(
        mask_id=mask_id,
        block_length=options.block_length,
        regime=options.attention,
        shift=options.shift,
        candidates=candidates,
        max_new_tokens=recipe.max_new_tokens if recipe else None,
    )


def _check_sampler(options: ExportOptions, spec: FamilySpec, sampler: SamplerSpec) -> None:
    """Refuse a default sampler that the bundle could not run, and a head that has no use."""
    if spec.mask_id is None and (options.shift or options.variant == "guided"):
        named = "--shift 1" if options.shift else "--guided"
        raise UsageError(
            f"{named} does not fit {spec.family}, which denoises random tokens", "leave it out"
        )
    config = SamplerConfig().updated(**{**sampler.parameters, "name": sampler.name})
    head = Head(variant=options.variant, candidates=spec.candidates)
    legal.check(config, legal.Planned(spec.family, spec.attention, head, spec.tokens))


def _suppressed(options: ExportOptions, spec: FamilySpec) -> tuple[int, ...]:
    vocab_size = spec.denoiser.vocab_size
    for token in options.suppress:
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"--suppress {token} is outside the vocabulary", f"give 0 to {vocab_size - 1}"
            )
    mask = set() if spec.mask_id is None else {spec.mask_id}
    suppressed = tuple(sorted({*mask, *options.suppress}))
    left = vocab_size - len(suppressed)
    if spec.candidates > left:
        raise UsageError(
            f"{spec.candidates} candidates exceed the {left} tokens that are not suppressed",
            "ask for fewer --candidates",
        )
    return suppressed


def _profiles(recipe: Recipe | None, spec: FamilySpec) -> tuple[Profile, ...]:
    """Return the recipe's profiles where they fit the checkpoint, which may be a smaller one."""
    if recipe is None:
        return default_profiles(spec)
    _check_lengths(recipe, recipe.profiles, spec)
    if not any(profile.rows >= spec.rows_in(profile) for profile in recipe.profiles):
        raise UsageError(
            f"recipe {recipe.name} has no profile for a block of {spec.block_length}",
            "leave out --recipe or --block-length, or copy and correct it",
        )
    return recipe.profiles


def _targets(recipe: Recipe | None, spec: FamilySpec) -> tuple[TargetSpec, ...]:
    targets = () if recipe is None else recipe.targets
    for target in targets:
        _check_lengths(recipe, target.profiles, spec)
    return targets


def _check_lengths(recipe: Recipe | None, profiles: Sequence[Profile], spec: FamilySpec) -> None:
    longest, name = spec.max_position_embeddings, recipe.name if recipe else ""
    check_routing(profiles, spec.routing_block)
    for profile in profiles:
        if max(profile.block, profile.cache) > longest:
            raise UsageError(
                f"recipe {name} has a profile {profile}, the model {longest} positions",
                "leave out --recipe or copy and correct it",
            )


def _name_source(resolved: ResolvedCheckpoint | None, recipe: Recipe | None) -> str:
    """Return where the checkpoint comes from, without this machine's paths."""
    if resolved is None:
        return recipe.source or recipe.name if recipe else ""
    return resolved.source if resolved.revision else resolved.path.resolve().name


def _public(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out where transformers notes the folder that it loaded the checkpoint from."""
    return {key: value for key, value in config.items() if key != "_name_or_path"}


def _warnings(spec: FamilySpec, suppressed: tuple[int, ...], text: Text | None) -> tuple[str, ...]:
    never = sorted(set(spec.stop_ids) & set(suppressed))
    found = [text.warning if text else ""]
    found.append(
        f"the stop ids {never} are suppressed and can never end an answer" if never else ""
    )
    return tuple(filter(None, found))
