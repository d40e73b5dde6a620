"""ONNX Runtime on the CPU: the bundle's graph is the plan, unless its weights are quantized."""

from pathlib import Path

from dlmc.targets.build import BuildPlan, Built
from dlmc.targets.lowered import lowered
from dlmc_runtime.manifest import Requirements


def build(plan: BuildPlan, folder: Path) -> Built:
    """Lower the graph where that is asked for.

    Raises:
        EngineError: the graph does not load.
    """
    import onnxruntime

    graph = lowered(plan, folder, "onnxruntime", native_experts=True)
    version = onnxruntime.__version__
    return Built(
        plan=graph.plan,
        device="cpu",
        cache_dtype=graph.cache_dtype,
        requires=Requirements(
            library="onnxruntime", version=version, match="any", memory=graph.memory
        ),
        versions={"onnxruntime": version},
    )
