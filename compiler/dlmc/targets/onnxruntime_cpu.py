"""ONNX Runtime on the CPU: the bundle's graph is the plan, so a build proves that it runs."""

from dlmc.targets.build import BuildPlan
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.onnxruntime import OnnxRuntimeEngine
from dlmc_runtime.manifest import EngineRecord
from dlmc_runtime.version import __version__


def build(plan: BuildPlan) -> EngineRecord:
    """Run every profile once and describe the engine.

    Raises:
        EngineError: the graph does not load, or a profile does not run.
    """
    import onnxruntime

    record = _record(
        plan.bundle, plan, {"dlmc": __version__, "onnxruntime": onnxruntime.__version__}
    )
    engine = OnnxRuntimeEngine(plan.bundle, record)
    try:
        for profile in plan.profiles:
            cache = engine.cache(profile.batch, profile.cache)
            engine.forward(engine.inputs(profile), cache, [])
    finally:
        engine.close()
    return record


def _record(bundle: Bundle, plan: BuildPlan, versions: dict[str, str]) -> EngineRecord:
    return EngineRecord(
        target=plan.target,
        device="cpu",
        precision=bundle.manifest.precision,
        profiles=plan.profiles,
        plan=bundle.manifest.graph,
        manifest_sha256=bundle.manifest_sha256,
        versions=versions,
        files={},
    )
