"""The graph a target builds: the bundle's own, or one lowered from it into the engine's folder."""

from dataclasses import dataclass
from pathlib import Path

from dlmc.lowering.lower import Form, Lowering, lower
from dlmc.targets.build import BuildPlan, memory
from dlmc_runtime.manifest import Precision


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


def lowered(plan: BuildPlan, folder: Path, form: Form) -> Graph:
    """Return the graph for ``plan``, written into ``folder`` where it is not the bundle's own.

    Args:
        plan: what to build.
        folder: where a graph of the engine's own goes.
        form: how the target wants quantized weights.

    Raises:
        DlmcError: as `dlmc.lowering.lower.lower`.
    """
    bundle, manifest = plan.bundle, plan.bundle.manifest
    if plan.precision == manifest.precision and plan.options.quantization == "none":
        weights = sum(manifest.files[name].size for name in manifest.weights)
        return _graph(plan, bundle.root / manifest.graph, None, manifest.precision, weights)
    how = Lowering(plan.precision, plan.options.quantization, form)
    made = lower(bundle, how, folder)
    weights = sum((folder / name).stat().st_size for name in made.weights)
    return _graph(plan, folder / made.graph, made.graph, plan.precision, weights)


def _graph(
    plan: BuildPlan, path: Path, name: str | None, cache_dtype: Precision, weights: int
) -> Graph:
    profiles = (memory(plan.bundle, profile, cache_dtype) for profile in plan.profiles)
    return Graph(path, name, cache_dtype, weights, weights + max(sum(p.values()) for p in profiles))
