"""What a family says about a checkpoint, and what the rest of the compiler reads from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from dlmc.denoiser.config import SPARSE, DenoiserConfig
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Attention, Profile, Regime, SamplerSpec, Tokens

Shift = Literal[0, 1]

_HEAD = "lm_head.weight"
_LAYER = "layers.{i}."
_ADAPTER = ".o_adapter."
_FIRST_NORM = "layers.0.input_layernorm.weight"  # an encoder normalises its embeddings instead

# Parameters that only some networks have, by how their names end, and what tells.
_OPTIONAL: Mapping[str, Callable[[DenoiserConfig], bool]] = {
    "_proj.bias": lambda denoiser: denoiser.qkv_bias,
    ".q_norm.weight": lambda denoiser: denoiser.qk_norm,
    ".k_norm.weight": lambda denoiser: denoiser.qk_norm,
    f"{_ADAPTER}a.weight": lambda denoiser: denoiser.adapter_rank > 0,
    f"{_ADAPTER}b.weight": lambda denoiser: denoiser.adapter_rank > 0,
    "lm_head_bias": lambda denoiser: denoiser.encoder is None or denoiser.encoder.decoder_bias,
    _HEAD: lambda denoiser: not denoiser.tie_word_embeddings,
    ".expert_bias": lambda denoiser: denoiser.moe is not None and denoiser.moe.expert_bias,
    **{
        f".shared_experts.{part}_proj.weight": lambda denoiser: (
            denoiser.moe is not None and denoiser.moe.shared_width > 0
        )
        for part in ("gate", "up", "down")
    },
}

# Parameters that only some kinds of layers have, by how their names go on after the layer's.
_OF_KINDS: Mapping[str, Callable[[str], bool]] = {
    "mlp.gate.": lambda kind: kind == SPARSE,
    "mlp.experts.": lambda kind: kind == SPARSE,
    "mlp.shared_experts.": lambda kind: kind == SPARSE,
    "mlp.gate_proj.": lambda kind: kind != SPARSE,
    "mlp.up_proj.": lambda kind: kind != SPARSE,
    "mlp.down_proj.": lambda kind: kind != SPARSE,
    "self_attn.v_proj.": lambda kind: kind != "full",  # those of DiffusionGemma reuse their keys
}


@dataclass(frozen=True)
class Overrides:
    """What the user states in place of the checkpoint; None leaves the family's reading alone."""

    mask_id: int | None = None
    block_length: int | None = None
    shift: int | None = None
    candidates: int | None = None
    max_new_tokens: int | None = None
    regime: str | None = None

    def apply(self, spec: "FamilySpec") -> "FamilySpec":
        """Return ``spec`` with what is stated here.

        Raises:
            UsageError: a value does not fit the checkpoint.
        """
        return self._attend(self._count(spec))

    def _attend(self, spec: "FamilySpec") -> "FamilySpec":
        """Return ``spec`` with the attention that is stated, without what then has no meaning."""
        if self.regime is None:
            return spec
        regime = next((one for one in get_args(Regime) if one == self.regime), None)
        if regime is None:
            known = " or ".join(get_args(Regime))
            raise UsageError(f"--attention {self.regime} does not fit", f"give {known}")
        if regime == spec.regime:
            return spec
        if spec.sliding_window is not None:
            raise UsageError(
                f"--attention {regime} does not fit {spec.family}, whose layers see a window",
                "leave it out",
            )
        if spec.regime == "full" and spec.block_length == spec.max_position_embeddings:
            raise UsageError(
                f"--attention {regime} needs blocks, {spec.family} denoises the whole answer",
                "give --block-length",
            )
        if regime != "full":
            return replace(spec, regime=regime)
        own = spec.sampler
        kept = {k: v for k, v in own.parameters.items() if k not in ("sub_block_length", "cache")}
        sampler = own.model_copy(update={"parameters": kept})
        return replace(spec, regime=regime, sampler=sampler, aligned_to="sequence", seeded=False)

    def _count(self, spec: "FamilySpec") -> "FamilySpec":
        """Return ``spec`` with the numbers that are stated."""
        limits = {
            "mask_id": (0, spec.denoiser.vocab_size - 1),
            "block_length": (1, spec.max_position_embeddings),
            "shift": (0, 1),
            "candidates": (1, spec.denoiser.vocab_size),
            "max_new_tokens": (1, spec.max_position_embeddings),
        }
        values = {name: getattr(self, name) for name in limits}
        stated = {name: value for name, value in values.items() if value is not None}
        for name, value in stated.items():
            low, high = limits[name]
            if not low <= value <= high:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} {value} does not fit", f"give {low} to {high}")
        return replace(spec, **stated)


@dataclass(frozen=True)
class FamilySpec:
    """One checkpoint as its family understands it.

    Lengths count tokens. ``block_length`` is how many positions are denoised together.
    ``shift`` is 1 where logit i predicts token i + 1. ``candidates`` is how many of the best
    tokens (K) the graph hands out for each row. ``aligned_to``, ``last_block`` and ``seeded`` are
    those of `dlmc_runtime.manifest.Attention`, ``expand_id``, ``delete_id`` and ``split_id`` those
    of its `Tokens`.
    """

    family: str
    architecture: str
    denoiser: DenoiserConfig
    regime: Regime
    block_length: int
    shift: Shift
    mask_id: int | None
    stop_ids: tuple[int, ...]
    pad_id: int
    bos_id: int | None
    max_position_embeddings: int
    sampler: SamplerSpec
    max_new_tokens: int
    candidates: int
    aligned_to: Literal["sequence", "answer"] = "sequence"
    last_block: Literal["whole", "cut"] = "whole"
    seeded: bool = False
    expand_id: int | None = None
    delete_id: int | None = None
    split_id: int | None = None

    def rows_in(self, profile: Profile) -> int:
        """Return how many rows of ``profile`` go through the head where a block is denoised.

        A family that sees the whole sequence denoises no more of it than the profile holds.
        """
        whole = self.regime == "full"
        return min(self.block_length, profile.block) if whole else self.block_length

    @property
    def attention(self) -> Attention:
        """The attention as a manifest states it."""
        return Attention(
            regime=self.regime,
            block_length=self.block_length,
            aligned_to=self.aligned_to,
            last_block=self.last_block,
            seeded=self.seeded,
            sliding_window=self.sliding_window,
            sliding_context=self.denoiser.sliding_context,
            routing_block=self.routing_block,
        )

    @property
    def tokens(self) -> Tokens:
        """The special ids as a manifest states them; an export may suppress more than these."""
        return Tokens(
            mask=self.mask_id,
            stop=self.stop_ids,
            pad=self.pad_id,
            bos=self.bos_id,
            suppressed=() if self.mask_id is None else (self.mask_id,),
            expand=self.expand_id,
            delete=self.delete_id,
            split=self.split_id,
        )

    @property
    def sliding_window(self) -> int | None:
        """How far to either side layers with a second mask see; None without such."""
        return self.denoiser.sliding_window

    @property
    def routing_block(self) -> int | None:
        """How many consecutive tokens choose their experts together; None where each is alone."""
        moe = self.denoiser.moe
        return moe.routing_block if moe is not None and moe.capacity else None


Reader = Callable[[Mapping[str, Any], Mapping[str, Any], Overrides], FamilySpec]
Fitter = Callable[[dict[str, Any], DenoiserConfig], None]


def _as_it_is(config: dict[str, Any], original: DenoiserConfig) -> None:
    """Change nothing: no key of ``config`` follows from its sizes."""


@dataclass(frozen=True)
class Family:
    """How one kind of checkpoint maps to a denoiser.

    Args:
        name: what ``--family`` takes.
        architectures: the values of ``architectures`` in ``config.json`` that mean this family.
        required: keys of ``config.json`` without which it is another kind of model.
        absent: keys whose presence (other than null) makes it another kind of model.
        read: makes a spec of ``config.json``, ``generation_config.json`` ({} where there is
            none) and overrides; raises `CheckpointError` naming the key that does not fit.
        weights: parameter name of `Denoiser` to tensor name in the checkpoint; ``{i}`` stands
            for the layer.
        stacked: parameters that a checkpoint holds expert by expert, to the tensors of one expert,
            whose rows follow one another; ``{e}`` stands for the expert.
        unread: how the names of tensors begin that a checkpoint may hold for other inputs than
            text.
        size_keys: keys of ``config.json`` that hold each size a user can scale (`dlmc synth`),
            with dots where one object lies in another.
        fit: makes the other keys of a scaled ``config.json`` agree with its sizes; it is also told
            the network before it was scaled.
        mask_text: text of the mask token, where the tokenizer alone may know its id.
    """

    name: str
    architectures: tuple[str, ...]
    required: tuple[str, ...]
    absent: tuple[str, ...]
    read: Reader
    weights: Mapping[str, str]
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    size_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fit: Fitter = _as_it_is
    mask_text: str | None = None

    @property
    def takes_adapter(self) -> bool:
        """Whether checkpoints may come with an adapter of attention's output projections."""
        return any(_ADAPTER in name for name in self.weights)

    def mismatches(self, config: Mapping[str, Any]) -> list[str]:
        """Return, in words, what in the structure of ``config`` speaks against this family."""
        missing = [f"no {key!r}" for key in self.required if key not in config]
        return missing + [f"has {key!r}" for key in self.absent if config.get(key) is not None]

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Return whether the keys of ``config`` are those of this family."""
        return not self.mismatches(config)

    def weight_names(self, spec: FamilySpec) -> dict[str, str]:
        """Return the checkpoint's tensor name of every parameter that one tensor holds.

        A tied head has no entry: the embedding serves as both.
        """
        names: dict[str, str] = {}
        lacking = tuple(end for end, has in _OPTIONAL.items() if not has(spec.denoiser))
        for ours, theirs in self.weights.items():
            if ours.endswith(lacking):
                continue
            names |= {
                ours.format(i=i): theirs.format(i=i) for i in _layers_with(ours, spec.denoiser)
            }
        if spec.denoiser.encoder is not None:
            names.pop(_FIRST_NORM, None)
        return names

    def stacked_names(self, spec: FamilySpec) -> dict[str, tuple[str, ...]]:
        """Return the tensors that together hold a parameter, in order, by parameter."""
        moe = spec.denoiser.moe
        return {
            ours.format(i=i): tuple(
                name.format(i=i, e=e)
                for e in range(0 if moe is None else moe.experts)
                for name in theirs
            )
            for ours, theirs in self.stacked.items()
            for i in _layers_with(ours, spec.denoiser)
        }

    def duplicates(self, spec: FamilySpec) -> frozenset[str]:
        """Return tensors that a checkpoint may carry although nothing needs them: a tied head."""
        return frozenset({self.weights[_HEAD]} if spec.denoiser.tie_word_embeddings else ())


def _layers_with(parameter: str, denoiser: DenoiserConfig) -> list[int]:
    """Return the layers that have a parameter; one entry for a parameter outside of layers."""
    if not parameter.startswith(_LAYER):
        return [0]
    own = parameter.removeprefix(_LAYER)
    has = next((rule for start, rule in _OF_KINDS.items() if own.startswith(start)), None)
    layers = range(denoiser.num_hidden_layers)
    return [i for i in layers if has is None or has(denoiser.kind(i))]
