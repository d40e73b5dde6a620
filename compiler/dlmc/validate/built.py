"""The short validation that `dlmc build` ends with."""

import importlib.util
from typing import TYPE_CHECKING

from dlmc_runtime import preflight
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.errors import RequestError

if TYPE_CHECKING:
    from dlmc.validate.report import Report

TOKENS = 16
_LARGE = 50_000_000  # parameters from which a generation may take minutes without a GPU
_FLOAT = 4  # bytes of a parameter in the reference


def validate_built(
    bundle: Bundle, name: str, machine: preflight.Machine | None = None
) -> "Report | str":
    """Compare an engine that was just built with a reference, on a few forwards of one prompt.

    The reference is the bundle's float32 graph in ONNX Runtime, so that torch need not be there;
    for the engine that runs this graph itself, it is torch. Either takes four bytes a parameter
    beside the engine. Of a large model only a forward of each kind is compared, and
    no layers.

    Args:
        bundle: the bundle, opened.
        name: full name of the engine.
        machine: by default this one.

    Returns:
        The report; its ``against`` says what the engine was compared with. Or, where it was not
        compared, one clause that says why.

    Raises:
        DlmcError: the engine or the reference does not load, or fails.
    """
    record = bundle.engine(name)
    if importlib.util.find_spec("polygraphy") is None:
        return "it takes Polygraphy: pip install 'dlmc[validate]'"
    reason = _obstacle(bundle, record, preflight.ThisMachine() if machine is None else machine)
    if reason:
        return reason
    from dlmc.validate.prompts import Wanted
    from dlmc.validate.reference import GRAPH, TORCH, is_graph
    from dlmc.validate.run import Wishes, validate

    against = TORCH if is_graph(bundle, record) else GRAPH
    if against == TORCH and importlib.util.find_spec("torch") is None:
        return "this engine is compared with torch: pip install 'dlmc[compile,validate]'"
    large = bundle.manifest.model.parameters >= _LARGE
    # One that stores and one that denoises; without a cache there is only one kind.
    forwards = 1 if bundle.manifest.attention.regime == "full" else 2
    wanted = Wanted(questions=1, longest=TOKENS, forwards=forwards if large else None)
    try:
        layers = not large and against == GRAPH
        done = validate(bundle, Wishes((name,), against, wanted, layers=layers, page=False))
    except RequestError as error:
        return f"the usual prompt does not fit ({error.message})"
    return done.reports[0]


def _obstacle(bundle: Bundle, record: EngineRecord, machine: preflight.Machine) -> str:
    """Return why nothing can be compared here, or nothing."""
    if record.target not in ENGINES:
        return f"this version of dlmc runs no engines for {record.target}"
    found = preflight.obstacle(record, machine)
    if found is not None:
        return found[0]
    free = machine.free_memory(gpu=False)
    need = _FLOAT * bundle.manifest.model.parameters
    if not record.requires.compute_capabilities:
        need += record.requires.memory
    if free is not None and need > free:
        gib = 1 << 30
        return (
            f"engine and reference take {need / gib:.1f} GiB of memory together, "
            f"{free / gib:.1f} GiB are free"
        )
    return ""
