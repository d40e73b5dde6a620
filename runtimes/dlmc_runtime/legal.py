"""Which samplers, caches and options go with which bundle."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

from dlmc_runtime import samplers
from dlmc_runtime.errors import RequestError, UsageError
from dlmc_runtime.manifest import Attention, Head, Regime, Tokens
from dlmc_runtime.samplers.config import COLDEST, SamplerConfig
from dlmc_runtime.samplers.renoise import Renoise

# Options that every sampler heeds, but for those that stand alone.
COMMON = frozenset(
    {
        "name",
        "temperature",
        "top_k",
        "top_p",
        "block_length",
        "sub_block_length",
        "cache",
        "guidance",
        "guidance_keep",
    }
)

CACHES: dict[Regime, tuple[str, ...]] = {
    "full": ("none", "prefix", "dual"),
    "block": ("dual",),
    "context": (),
}
"""The caches that can be asked for by name, besides the exact ones that need no name."""

_EVERYWHERE: tuple[Regime, ...] = ("full", "block", "context")
_REGIMES: dict[str, tuple[Regime, ...]] = {
    "wino": ("full",),
    "autoregressive": ("context",),
    "linear_speculation": ("context",),
    "renoise": ("context",),
    "levenshtein": ("block",),
}
_WITHOUT_MASKS = ("renoise",)


def regimes_of(sampler: str) -> tuple[Regime, ...]:
    """Return the attention regimes that a sampler goes with."""
    return _REGIMES.get(sampler, _EVERYWHERE)


def fills_masks(sampler: str) -> bool:
    """Return whether a sampler goes with models of masks, and not with those of random tokens."""
    return sampler not in _WITHOUT_MASKS


def samplers_of(regime: Regime, *, masked: bool = True) -> list[str]:
    """Return the samplers that go with an attention regime, and with masks or random tokens."""
    return [
        name
        for name in samplers.SAMPLERS
        if regime in regimes_of(name) and fills_masks(name) is masked
    ]


def samplers_for(regime: Regime, tokens: Tokens) -> list[str]:
    """Return the samplers that go with a model's attention regime and special tokens."""
    possible = samplers_of(regime, masked=tokens.mask is not None)
    edits = tokens.split is not None
    return [name for name in possible if edits or name != "levenshtein"]


class Model(Protocol):
    """What is asked of a model; `Manifest` is one."""

    @property
    def family(self) -> str:
        """Name of its family."""
        ...

    @property
    def attention(self) -> Attention:
        """Its attention."""
        ...

    @property
    def head(self) -> Head:
        """Its vocabulary head."""
        ...

    @property
    def tokens(self) -> Tokens:
        """Its special tokens."""
        ...


@dataclass(frozen=True)
class Planned:
    """A model that has no manifest yet."""

    family: str
    attention: Attention
    head: Head
    tokens: Tokens


def check(config: SamplerConfig, manifest: Model, *, constrained: bool = False) -> None:
    """Refuse what a sampler, or a bundle's head and attention, cannot do.

    Args:
        config: the sampler.
        manifest: the bundle.
        constrained: whether the text must match something.

    Raises:
        UsageError: the sampler does not heed an option that is given.
        RequestError: the bundle cannot do it; the hint says what it can.
    """
    check_heeded(config)
    for problem, hint in (
        *_about_attention(config, manifest),
        *_about_head(config, manifest),
        *_about_pairs(config, manifest),
        *(_about_constraint(config, manifest) if constrained else ()),
    ):
        raise RequestError(problem, hint)


GROWING = ("low_confidence", "maskgit_plus", "topk_margin", "entropy")
"""Samplers whose order of positions spans that grow are filled in."""


def check_growing(config: SamplerConfig, model: Model) -> None:
    """Refuse what has no effect where spans grow: they are filled one position a forward.

    Raises:
        RequestError: the hint says what has one.
    """
    if config.name not in GROWING:
        raise RequestError(
            f"spans that grow are not filled by {config.name}", f"use one of {', '.join(GROWING)}"
        )
    if model.head.candidates < 2:  # the second is taken where a span may grow no further
        raise RequestError(
            "spans that grow need two candidates a position, the graph keeps one",
            "export with --candidates 2 or more",
        )
    heeded = {"name", "temperature", "top_k", "top_p", "guidance", "guidance_keep"}
    for field in fields(config):
        if field.name not in heeded and getattr(config, field.name) != field.default:
            raise RequestError(
                f"{field.name} has no effect where spans grow", f"leave it out of {config.name}"
            )


def check_heeded(config: SamplerConfig) -> None:
    """Refuse options that a sampler does not heed, which needs no bundle.

    Raises:
        UsageError: one is given.
    """
    sampler = samplers.find(config.name)
    heeds = sampler.heeds
    legal = heeds | ({"name"} if sampler.alone else COMMON)
    for field in fields(config):
        if field.name in legal or getattr(config, field.name) == field.default:
            continue
        known = f"it heeds {', '.join(sorted(heeds))}" if heeds else "it has no options"
        raise UsageError(f"the sampler {config.name} takes no {field.name}", known)


def _about_attention(config: SamplerConfig, manifest: Model) -> Iterator[tuple[str, str]]:
    own, family = manifest.attention, manifest.family
    masked = manifest.tokens.mask is not None
    if own.regime not in regimes_of(config.name) or fills_masks(config.name) is not masked:
        legal = ", ".join(samplers_for(own.regime, manifest.tokens))
        hint = f"use one of {legal}" if legal else "leave out --attention"
        yield f"the sampler {config.name} does not go with {family}", hint
    elif config.name not in samplers_for(own.regime, manifest.tokens):
        yield (
            f"{family} has no tokens that delete and insert, which {config.name} needs",
            "use token_editing",
        )
    if config.cache is not None and config.cache not in CACHES[own.regime]:
        hint = (
            f"ask for one of {', '.join(CACHES[own.regime])}"
            if own.regime == "full"
            else "leave it out: its cache is exact"
            + ("; dual goes with sub_block_length" if CACHES[own.regime] else "")
        )
        yield f"{family} has no cache {config.cache!r}", hint
    if config.block_length not in (None, own.block_length) and own.regime == "block":
        yield (
            f"block_length {config.block_length} differs from the model's {own.block_length}",
            "export with --block-length for a checkpoint trained that way",
        )
    longer = config.block_length is not None and config.block_length > own.block_length
    if longer and own.regime == "context":
        yield (
            f"block_length {config.block_length} exceeds the model's {own.block_length}",
            "ask for less, or export with --block-length",
        )
    if config.sub_block_length is not None and own.regime == "full":
        yield f"{family} has no sub-blocks", "give block_length instead"
    if config.sub_block_length is not None and (own.routing_block or 1) > 1:
        yield (
            f"{family} has no sub-blocks: {own.routing_block} tokens choose their experts together",
            "leave sub_block_length out",
        )
    if config.sub_block_length is not None and config.sub_block_length > own.block_length:
        yield (
            f"sub_block_length {config.sub_block_length} exceeds the block of {own.block_length}",
            "give a shorter one",
        )
    if config.cache == "dual" and own.regime == "block" and config.sub_block_length is None:
        yield (
            f"the cache dual of {family} is for sub-blocks",
            "give sub_block_length as well, or leave it out: the cache of whole blocks is exact",
        )


def _about_head(config: SamplerConfig, manifest: Model) -> Iterator[tuple[str, str]]:
    kept = manifest.head.candidates
    if config.top_k > kept:
        yield (
            f"top_k {config.top_k} needs more candidates than the {kept} the graph keeps",
            f"ask for at most {kept}, or export with --candidates {config.top_k}",
        )
    if "margin" in samplers.find(config.name).needs and kept < 2:
        yield (
            f"the sampler {config.name} needs two candidates, the graph keeps {kept}",
            "export with --candidates 2 or more",
        )
    if config.name == "levenshtein" and kept < 3:  # one beside those that delete and insert
        yield (
            f"the sampler levenshtein needs three candidates, the graph keeps {kept}",
            "export with --candidates 3 or more",
        )
    if config.guidance and manifest.head.variant != "guided":
        yield (
            "the bundle has no head for classifier-free guidance",
            "export with --guided, or leave guidance out",
        )


def _about_pairs(config: SamplerConfig, manifest: Model) -> Iterator[tuple[str, str]]:
    """Yield what two options rule out together."""
    del manifest
    speculative = config.name in ("autoregressive", "linear_speculation")
    if config.guidance and (speculative or config.name == "wino"):
        yield f"the sampler {config.name} cannot be guided", "leave guidance out"
    if config.guidance_keep and not config.guidance:
        yield "guidance_keep has no effect without guidance", "give guidance as well"
    if config.name == "linear_speculation" and config.temperature:
        yield (
            "linear_speculation checks its drafts at temperature 0 only",
            "leave temperature out, or use autoregressive",
        )
    if config.name == "wino" and config.cache not in (None, "none"):
        yield "wino feeds the whole canvas at every step", "leave the cache out"
    best = {"credit": "credit decoding", "levenshtein": "levenshtein editing"}.get(config.name)
    if best and (config.temperature or config.top_k or config.top_p < 1):
        yield f"{best} takes the best token", "leave temperature, top_k and top_p out"
    whole = speculative or samplers.find(config.name).rewrites
    if whole and config.sub_block_length is not None:
        yield f"the sampler {config.name} has no sub-blocks", "leave sub_block_length out"
    if config.name == "renoise":
        yield from _about_heat(Renoise(config))


_UNBOUND = {
    "token_editing": "replaces tokens one by one",
    "levenshtein": "replaces, inserts and deletes tokens one by one",
    "autoregressive": "accepts tokens that a causal pass proposes",
    "linear_speculation": "accepts tokens that a causal pass proposes",
}
"""Samplers that fix tokens where a constraint is not asked, and how."""


def _about_constraint(config: SamplerConfig, manifest: Model) -> Iterator[tuple[str, str]]:
    """Yield why a text of this sampler cannot be kept to a constraint."""
    why = _UNBOUND.get(config.name)
    if why is not None:
        possible = samplers_for(manifest.attention.regime, manifest.tokens)
        legal = ", ".join(name for name in possible if name not in _UNBOUND)
        yield (
            f"the sampler {config.name} {why}, which a constraint rules out",
            f"use one of {legal}",
        )


def _about_heat(sampler: Renoise) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the temperatures that a canvas goes through."""
    coldest, hottest = sampler.option("t_min"), sampler.option("t_max")
    if hottest <= coldest:
        yield (
            f"t_max {hottest:g} is not above t_min {coldest:g}",
            "give a higher t_max or a lower t_min",
        )
    last = sampler.temperature(sampler.steps - 1)
    if last < COLDEST:
        yield (
            f"the last of {sampler.steps} steps would have a temperature of {last:g}",
            f"give a higher t_min or fewer steps: it must be at least {COLDEST:g}",
        )
