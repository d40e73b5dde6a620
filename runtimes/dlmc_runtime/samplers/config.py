"""What a request may ask of a sampler."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from dlmc_runtime.errors import UsageError


@dataclass(frozen=True)
class SamplerConfig:
    """Parameters of one row's sampler. Rows of a batch may differ in every one of them.

    Attributes:
        name: a registered sampler, see `dlmc_runtime.samplers.SAMPLERS`.
        steps: forwards per block; None means one per position of the block. (LLaDA's own
            ``steps`` counts the forwards of all blocks together.) A block that still has masks
            after so many is finished by the last of them. For ``renoise`` it is what the fall of
            the temperature is shared among.
        threshold: commit every position at least this sure; None for a fixed number of steps.
        factor: Fast-dLLM's bound on parallel commits (arXiv 2505.22618); excludes ``threshold``.
        temperature: 0 takes the best token, otherwise tokens are drawn.
        top_k: draw among this many best tokens; 0 means all.
        top_p: draw among the best tokens that hold this much probability.
        block_length: positions denoised together; None means the bundle's own. Models that see
            the whole sequence take any, models with a causal pass shorter ones.
        sub_block_length: positions of a block that are filled before the next ones (Fast-dLLM
            v2); None means the whole block.
        cache: for families that see the whole sequence, ``none`` recomputes everything,
            ``prefix`` and ``dual`` are Fast-dLLM's approximations; ``dual`` is also the sub-block
            cache of Fast-dLLM v2. None means what is exact.
        schedule: how steps share the positions of a block: ``uniform`` (LLaDA), ``linear`` or
            ``cosine`` (the reverse process of MDLM), ``dream``, ``rnd1``. None means the sampler's
            own.
        eps: where Dream's time ends.
        alg_temp: above 0, Dream's samplers draw positions instead of taking the best.
        defer_ids: predictions of these ids are committed last (LLaDA's
            ``confidence_eos_eot_inf``).
        uncounted_ids: ids that confidence leaves out of the distribution, as if they could not be
            predicted; predictions of them have confidence 0 (dllm's ``begin_suppress_tokens``).
        guidance: scale of classifier-free guidance; 0 turns it off.
        guidance_keep: ids that the unguided row keeps; it has masks for the rest of the prompt.
        least: fewest masks that a step of token editing fills, however unsure.
        most: most positions a step commits; None for no limit.
        gamma: entropy, in nats, that the entropy-bounded sampler spends in a step.
        kl_threshold: how little a distribution may move between steps to count as stable (KLASS).
        low_threshold: confidence below which hierarchical decoding leaves a run of masks alone.
        min_threshold: confidence that the positional bound of Nemotron's sampler asks at least.
        revoke_threshold: WINO makes a committed token a mask again below this probability.
        eta: largest probability with which ReMDM makes a committed token a mask again.
        entropy_bound: entropy, in nats, that ``renoise`` spends on the draws it keeps in a step.
        t_min: temperature that its steps fall towards.
        t_max: temperature of its first step.
        stability_threshold: how many steps its best tokens must stay the same to be final early.
        confidence_threshold: mean entropy, in nats, below which they are then; 0 waits for the
            last step.
        order: what the entropy-bounded sampler goes by: ``entropy``, or ``confidence`` (RND1).
        edit_threshold: token editing replaces a decided token where another is surer than this;
            at 0 wherever another is the best.
        max_post_steps: forwards over a block without masks after which token editing ends.
        max_steps: forwards over a block after which Levenshtein editing ends.
    """

    name: str = "low_confidence"
    steps: int | None = None
    threshold: float | None = None
    factor: float | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    block_length: int | None = None
    sub_block_length: int | None = None
    cache: str | None = None
    schedule: str | None = None
    eps: float = 1e-3
    alg_temp: float | None = None
    defer_ids: tuple[int, ...] = ()
    uncounted_ids: tuple[int, ...] = ()
    guidance: float = 0.0
    guidance_keep: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None
    gamma: float | None = None
    kl_threshold: float | None = None
    low_threshold: float | None = None
    min_threshold: float | None = None
    revoke_threshold: float | None = None
    eta: float | None = None
    entropy_bound: float | None = None
    t_min: float | None = None
    t_max: float | None = None
    stability_threshold: int | None = None
    confidence_threshold: float | None = None
    order: str | None = None
    edit_threshold: float | None = None
    max_post_steps: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that mean nothing."""
        from dlmc_runtime.samplers import SAMPLERS

        if self.name not in SAMPLERS:
            known = ", ".join(SAMPLERS)
            raise UsageError(f"no sampler is called {self.name!r}", f"choose one of {known}")
        for name, legal, wanted in _RULES:
            value = getattr(self, name)
            optional = self.__dataclass_fields__[name].default is None
            if not (value is None and optional) and not legal(value):
                raise UsageError(f"{name} is {value!r}", f"it must be {wanted}")
        both = self.threshold is not None and self.factor is not None
        if both and self.name not in _BOTH:
            raise UsageError("threshold and factor exclude each other", "give only one of them")

    def updated(self, /, **changes: Any) -> "SamplerConfig":
        """Return a copy with every change that is not None.

        Raises:
            UsageError: a change names no parameter, or its value is illegal.
        """
        known = {field.name for field in fields(self)}
        for name in changes.keys() - known:
            raise UsageError(f"samplers have no parameter {name!r}", f"known: {sorted(known)}")
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    number = _whole(value) or (isinstance(value, float) and math.isfinite(value))
    return number and abs(value) <= _LARGEST


_LARGEST = 1e9  # of any number: beyond it, arithmetic on them rounds everything else away
_MOST_STEPS = 16384
# Between these temperatures float32 neither rounds confidences away nor draws suppressed tokens.
COLDEST, _HOTTEST = 1e-3, 1e3

# Samplers that ask for a threshold and for the factor of a positional bound.
_BOTH = ("confidence_threshold_ref", "confidence_threshold_bound")
_CACHES = ("none", "prefix", "dual")
_SCHEDULES = ("uniform", "linear", "cosine", "dream", "rnd1")
_ORDERS = ("entropy", "confidence")


def _ids(value: Any) -> bool:
    return isinstance(value, tuple) and all(_whole(v) and v >= 0 for v in value)


def _share(value: Any) -> bool:
    return _real(value) and 0 < value <= 1


def _steps(least: int) -> Callable[[Any], bool]:
    return lambda value: _whole(value) and least <= value <= _MOST_STEPS


def _temperature(value: Any) -> bool:
    return _real(value) and (value == 0 or COLDEST <= value <= _HOTTEST)


def _heat(value: Any) -> bool:
    return _real(value) and 0 <= value <= _HOTTEST


def _at_least(least: int) -> Callable[[Any], bool]:
    return lambda value: _whole(value) and value >= least


def _not_negative(value: Any) -> bool:
    return _real(value) and value >= 0


def _one_of(names: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


_SHARE = "above 0 and at most 1"
_COUNT = "a whole number of at least 1"
_AMOUNT = "a number of at least 0"
_DEGREES = f"0, or {COLDEST:g} to {_HOTTEST:g}"
_HEAT = f"0 to {_HOTTEST:g}"

_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("steps", _steps(1), f"a whole number from 1 to {_MOST_STEPS}"),
    ("threshold", _share, _SHARE),
    ("factor", _not_negative, _AMOUNT),
    ("temperature", _temperature, _DEGREES),
    ("top_k", _at_least(0), "a whole number of at least 0"),
    ("top_p", _share, _SHARE),
    ("block_length", _at_least(1), _COUNT),
    ("sub_block_length", _at_least(1), _COUNT),
    ("cache", _one_of(_CACHES), f"one of {', '.join(_CACHES)}"),
    ("schedule", _one_of(_SCHEDULES), f"one of {', '.join(_SCHEDULES)}"),
    ("eps", lambda v: _real(v) and 0 < v < 1, "above 0 and below 1"),
    ("alg_temp", _temperature, _DEGREES),
    ("defer_ids", _ids, "a tuple of token ids"),
    ("uncounted_ids", _ids, "a tuple of token ids"),
    ("guidance", _heat, _HEAT),
    ("guidance_keep", _ids, "a tuple of token ids"),
    ("least", _at_least(1), _COUNT),
    ("most", _at_least(1), _COUNT),
    ("gamma", _not_negative, _AMOUNT),
    ("kl_threshold", _not_negative, _AMOUNT),
    ("low_threshold", _share, _SHARE),
    ("min_threshold", _share, _SHARE),
    ("revoke_threshold", _share, _SHARE),
    ("eta", _share, _SHARE),
    ("entropy_bound", _not_negative, _AMOUNT),
    ("t_min", _heat, _HEAT),
    ("t_max", _heat, _HEAT),
    (
        "stability_threshold",
        lambda v: _whole(v) and 0 <= v <= _MOST_STEPS,
        f"a whole number from 0 to {_MOST_STEPS}",
    ),
    ("confidence_threshold", _not_negative, _AMOUNT),
    ("order", _one_of(_ORDERS), f"one of {', '.join(_ORDERS)}"),
    ("edit_threshold", lambda v: _real(v) and 0 <= v <= 1, "at least 0 and at most 1"),
    ("max_post_steps", _steps(0), f"a whole number from 0 to {_MOST_STEPS}"),
    ("max_steps", _steps(1), f"a whole number from 1 to {_MOST_STEPS}"),
)
