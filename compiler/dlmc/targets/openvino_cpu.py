"""OpenVINO on the CPU: a graph whose precision is explicit is the plan."""

from importlib.metadata import version
from pathlib import Path

from dlmc.targets.build import BuildPlan, Built
from dlmc.targets.lowered import lowered
from dlmc_runtime.engine_record import Requirements


def build(plan: BuildPlan, folder: Path) -> Built:
    """Lower the graph where that is asked for.

    Raises:
        DlmcError: the graph cannot be lowered.
    """
    graph = lowered(plan, folder, "qdq")
    found = version("openvino")
    return Built(
        plan=graph.plan,
        device="cpu",
        cache_dtype=graph.cache_dtype,
        requires=Requirements(library="openvino", version=found, match="any", memory=graph.memory),
        options={"model_cache": "true"} if plan.options.model_cache else {},
        versions={"openvino": found},
    )
