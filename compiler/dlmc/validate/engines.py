"""Which engines of a bundle to validate."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlmc.validate.reference import GRAPH, TORCH
from dlmc_runtime import engines, preflight
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.errors import BundleError, EngineError, UsageError


@dataclass(frozen=True)
class Chosen:
    """Engines by their full names, and a note on each that was left out."""

    engines: dict[str, EngineRecord]
    notes: tuple[str, ...] = ()


def choose_engines(bundle: Bundle, wanted: Sequence[str], against: str) -> Chosen:
    """Return the engines that are meant: those that are named, or all that run here.

    Args:
        bundle: the bundle.
        wanted: targets or full names; none means all that were built.
        against: the reference, which is not compared with itself.

    Raises:
        UsageError: nothing is called that, or the reference is among those named.
        BundleError: an engine that is named was not built, or nothing was.
        EngineError: an engine that is named does not run here, or none does.
    """
    no_engine = against in (TORCH, GRAPH) or against.endswith(".json")
    reference = "" if no_engine else bundle.engine_name(against)
    for name in (*wanted, *filter(None, [reference])):
        engines.find(bundle, name)
    if wanted:
        names = list(dict.fromkeys(bundle.engine_name(name) for name in wanted))
        if reference in names:
            raise UsageError(f"{reference} would be compared with itself", "name another engine")
        return Chosen({name: _must_run(bundle, name) for name in names})
    found: dict[str, EngineRecord] = {}
    notes = []
    for name in bundle.engine_names():
        if name == reference:
            continue
        try:
            found[name] = _must_run(bundle, name)
        except (BundleError, EngineError) as error:
            notes.append(f"{name} is left out: {error.message}")
    if not found:
        if notes:
            raise EngineError("; ".join(notes), "build an engine that runs here")
        raise BundleError(
            f"{bundle.root} holds no engine to compare with {against}",
            f"run dlmc build {bundle.root}",
        )
    return Chosen(found, tuple(notes))


def _must_run(bundle: Bundle, name: str) -> EngineRecord:
    record = engines.find(bundle, name)
    preflight.check(record)
    return record
