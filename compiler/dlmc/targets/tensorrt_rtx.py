"""TensorRT for RTX: plans for named GPUs, or for all of a generation, built without any."""

from pathlib import Path
from typing import Any

from dlmc.targets.build import BuildPlan, Built
from dlmc.targets.tensorrt import build_plan
from dlmc_runtime.engines.cuda import compute_capability
from dlmc_runtime.engines.tensorrt import library
from dlmc_runtime.errors import EngineError, UsageError

# What the library builds for where it is told nothing: these and whatever comes later.
DEFAULT = ("sm80", "sm86", "sm89", "sm120")
_FIRST_BFLOAT16 = 80


def build(plan: BuildPlan, folder: Path) -> Built:
    """Build a plan for the GPUs that are named, or for Ampere and later.

    Raises:
        UsageError: the library does not build for one of them.
        EngineError: it refuses the graph or a profile, or what is asked takes a GPU.
    """
    trt = library(plan.target)
    wanted = tuple(dict.fromkeys(plan.options.compute_capability))
    able = [name.lower() for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    odd = [name for name in wanted if name not in able]
    if odd:
        raise UsageError(
            f"{plan.target} {trt.__version__} does not build for {odd[0]}",
            f"choose among {', '.join(able)}",
        )
    turing = [name for name in wanted if int(name[2:]) < _FIRST_BFLOAT16]
    if turing and plan.precision == "bfloat16":
        raise UsageError(f"{turing[0]} has no bfloat16", "build with --precision f16")
    if plan.options.refit and compute_capability() is None:
        raise EngineError("--refit takes a GPU to build, none answers here", "leave it out")

    def configure(trt: Any, config: Any) -> None:
        # Memory of ours throughout, which is what lets the runtime capture CUDA graphs.
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
        config.num_compute_capabilities = len(wanted)
        for index, name in enumerate(wanted):
            config.set_compute_capability(getattr(trt.ComputeCapability, name.upper()), index)

    return build_plan(
        plan,
        folder,
        configure,
        match="exact",
        compute_capabilities=wanted or DEFAULT,
        newer_gpus=not wanted,
    )
