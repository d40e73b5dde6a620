"""How far an engine may be from the reference: one table by precision and quantization."""

from dlmc.export.defaults import TOLERANCES
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.manifest import Manifest, Precision, Quantization, Tolerance

Limits = dict[str, Tolerance]

IDS = ("top_ids", "sampled_id")
COMMITTED, GENERATION, LAYERS, CHANNELS = "committed", "generation", "layers", "channels"
SHARES = (*IDS, COMMITTED, GENERATION)
"""What can only be equal or not: `atol` is the share that may differ."""


def _lossy(
    number: float, ids: float, committed: float, generation: float, layers: float, channels: float
) -> Limits:
    """Return limits of an engine that rounds on purpose.

    Args:
        number: how far logits and what is made of them may be off, in nats.
        ids: share of the best ids that may differ where the reference is sure of them.
        committed: share of the committed tokens that may differ.
        generation: share of the generated tokens that may differ.
        layers: error of one layer by itself, relative to its vectors.
        channels: the same of one feature over all positions.
    """
    return {
        **dict.fromkeys(TOLERANCES, Tolerance(atol=number)),
        **dict.fromkeys(IDS, Tolerance(atol=ids)),
        COMMITTED: Tolerance(atol=committed),
        GENERATION: Tolerance(atol=generation),
        LAYERS: Tolerance(atol=layers),
        CHANNELS: Tolerance(atol=channels),
    }


EXACT: Limits = {
    **TOLERANCES,
    **dict.fromkeys(IDS, Tolerance(atol=0.0)),
    COMMITTED: Tolerance(atol=0.0),
    GENERATION: Tolerance(atol=0.0),
    LAYERS: Tolerance(atol=1e-4),
    CHANNELS: Tolerance(atol=1e-4),
}
"""Of float32 against float32: every token is the same."""

DEFAULTS: dict[Precision | Quantization, Limits] = {
    "float32": EXACT,
    "float16": _lossy(0.1, 0.01, 0.02, 0.1, 0.02, 0.02),
    "bfloat16": _lossy(2.5, 0.15, 0.1, 0.1, 0.2, 0.1),
    "none": EXACT,
    "int8": _lossy(1.0, 0.1, 0.1, 0.1, 0.1, 0.3),
    "int4": _lossy(15.0, 0.3, 0.4, 0.3, 1.0, 3.0),
    "w8a8": _lossy(3.0, 0.15, 0.15, 0.1, 0.3, 1.5),
}
"""What rounding to a type costs at most; see docs/validation.md for what was measured."""


# Where a canvas begins as random tokens, all that follows hangs on draws: one that rounding
# changes, be it that of float32 on another kind of processor, leads to another answer, which may
# be as good. Forwards, with what they draw and keep, are compared as everywhere.
_ANY = Tolerance(atol=1.0)
_COLDEST = 0.4  # what logits are divided by at most, as released


def strict_limits(manifest: Manifest) -> Limits:
    """Return what a float32 engine of the bundle is held to."""
    return {**EXACT, **manifest.tolerances}


def limits(manifest: Manifest, record: EngineRecord) -> Limits:
    """Return what an engine is held to, by output and for `committed`, `generation`, `layers`.

    The bundle's own tolerances are for float32. An engine that computes in less has those of the
    table instead, of its precision or of its quantization, whichever is wider; what its record
    says wins over both.
    """
    losses = DEFAULTS[record.precision], DEFAULTS[record.quantization]
    drawn = manifest.tokens.mask is None
    if losses == (EXACT, EXACT):
        answers = {GENERATION: _ANY} if drawn else {}
        return {**EXACT, **answers, **manifest.tolerances, **record.tolerances}
    wider = {name: _wider(*(loss[name] for loss in losses)) for name in EXACT}
    if drawn:
        wider[GENERATION] = _ANY
        for name in ("tempered_logsumexp", "tempered_entropy"):
            wider[name] = Tolerance(atol=wider[name].atol / _COLDEST)
    return {**wider, **record.tolerances}


def _wider(one: Tolerance, other: Tolerance) -> Tolerance:
    return one if one.atol >= other.atol else other
