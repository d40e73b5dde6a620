"""ONNX Runtime on the GPU: the bundle's graph is the plan, unless it was lowered."""

from pathlib import Path

from dlmc.targets.build import BuildPlan, Built
from dlmc.targets.lowered import lowered
from dlmc_runtime.engine_record import Requirements

_OLDEST = "sm75"  # what CUDA 13 still supports


def build(plan: BuildPlan, folder: Path) -> Built:
    """Lower the graph where that is asked for; this takes no GPU.

    Raises:
        DlmcError: as `dlmc.lowering.lower.lower`.
    """
    import onnxruntime

    own = plan.options.execution_provider
    graph = lowered(plan, folder, "qdq" if own == "tensorrt" else "onnxruntime")
    version = onnxruntime.__version__
    return Built(
        plan=graph.plan,
        device="cuda",
        cache_dtype=graph.cache_dtype,
        requires=Requirements(
            library="onnxruntime-gpu",
            version=version,
            match="any",
            compute_capabilities=(_OLDEST,),
            newer_gpus=True,
            memory=graph.memory,
        ),
        options={
            "execution_provider": own,
            "cuda_graph": "on" if plan.options.cuda_graph else "off",
            "tf32": "off",
        },
        versions={"onnxruntime": version},
    )
