"""What a bundle promises where neither recipe nor command line says otherwise."""

from collections.abc import Callable

from dlmc.families.spec import FamilySpec
from dlmc_runtime.manifest import Profile, Regime, Tolerance

# Of fp32 engines against the fp32 reference; sums over the vocabulary agree better than logits,
# keys and values grow with depth like the hidden states they come from.
TOLERANCES: dict[str, Tolerance] = {
    "top_logits": Tolerance(atol=1e-3),
    "sampled_logit": Tolerance(atol=1e-3),
    "logits": Tolerance(atol=1e-3),
    "logsumexp": Tolerance(atol=1e-3),
    "tempered_logsumexp": Tolerance(atol=1e-3, rtol=1e-4),
    "tempered_entropy": Tolerance(atol=1e-3, rtol=1e-4),
    "entropy": Tolerance(atol=1e-3),
    "present": Tolerance(atol=1e-3, rtol=1e-4),
}

_CANVAS = 256
_CACHE = 2048
_PREFILL = 256


def _whole_sequence(spec: FamilySpec) -> tuple[Profile, ...]:
    """One forward over prompt and answer; only the block being denoised goes through the head."""
    canvas = min(_CANVAS, spec.max_position_embeddings)
    rows = min(spec.block_length, canvas)
    return (Profile(batch=1, block=canvas, cache=0, rows=rows),)


def _cached(spec: FamilySpec) -> tuple[Profile, ...]:
    """One profile to denoise and commit a block, one to prefill many at once."""
    length = spec.block_length
    cache = min(_CACHE, spec.max_position_embeddings)
    denoise = Profile(batch=1, block=length, cache=cache, rows=length)
    # Prefill stores whole blocks only.
    prefill = max(length, min(_PREFILL, cache) // length * length)
    return (denoise, Profile(batch=1, block=prefill, cache=cache, rows=1))


_PROFILES: dict[Regime, Callable[[FamilySpec], tuple[Profile, ...]]] = {
    "full": _whole_sequence,
    "block": _cached,
    "context": _cached,
}


def default_profiles(spec: FamilySpec) -> tuple[Profile, ...]:
    """Return the shapes to build for a checkpoint."""
    return _PROFILES[spec.regime](spec)
