"""The graph a target builds: the bundle's own, or one lowered from it into the engine's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlmc.targets.build import BuildPlan, memory
from dlmc.targets.given import take
from dlmc_runtime.manifest import Precision

if TYPE_CHECKING:
    from dlmc.lowering.lower import Form

_NAME, _WEIGHTS = "denoiser.onnx", "weights"


@dataclass(frozen=True)
class Graph:
    """A graph to build.

    Attributes:
        path: where it lies.
        plan: its name in the engine's folder; None for the bundle's own.
        cache_dtype: of its caches.
        weights: bytes of its weights.
        memory: bytes that weights and the largest profile take.
    """

    path: Path
    plan: str | None
    cache_dtype: Precision
    weights: int
    memory: int


def lowered(plan: BuildPlan, folder: Path, form: "Form", *, native_experts: bool = False) -> Graph:
    """Return the graph for ``plan``, written into ``folder`` where it is not the bundle's own.

    Args:
        plan: what to build.
        folder: where a graph of the engine's own goes.
        form: how the target wants weights.
        native_experts: as in `dlmc.lowering.lower.Lowering`.

    Raises:
        DlmcError: as `dlmc.lowering.lower.lower`, or as `dlmc.targets.given.take`.
    """
    bundle, manifest = plan.bundle, plan.bundle.manifest
    if plan.options.graph is not None:
        cache_dtype = take(plan.options.graph, manifest, folder)
        return _graph(plan, folder, _NAME, cache_dtype)
    plain = plan.precision == manifest.precision and plan.quantization == "none"
    from dlmc.lowering.lower import Lowering, calls_functions, lower

    if plain and form == "qdq" and not calls_functions(bundle.root / manifest.graph):
        return _graph(plan, bundle.root, None, manifest.precision)

    states = None
    if plan.quantization == "w8a8":
        from dlmc.targets.calibration import calibration_states

        states = calibration_states(bundle, plan.profiles, plan.options.calibration)
    how = Lowering(plan.precision, plan.quantization, form, native_experts=native_experts)
    made = lower(bundle, how, folder, states)
    return _graph(plan, folder, made.graph, made.cache_dtype)


def _graph(plan: BuildPlan, root: Path, name: str | None, cache_dtype: Precision) -> Graph:
    files = (path for path in (root / _WEIGHTS).rglob("*") if path.is_file())
    weights = sum(path.stat().st_size for path in files)
    profiles = (memory(plan.bundle, profile, cache_dtype) for profile in plan.profiles)
    largest = max(sum(needed.values()) for needed in profiles)
    path = root / (name or plan.bundle.manifest.graph)
    return Graph(path, name, cache_dtype, weights, weights + largest)
