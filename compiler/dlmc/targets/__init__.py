"""Where a bundle can be built. The table can be read without importing a target's library."""

from dataclasses import dataclass

from dlmc_runtime.manifest import Precision, Quantization


@dataclass(frozen=True)
class Target:
    """What can be built for a target.

    Attributes:
        module: has ``build(plan, folder) -> Built``, see `dlmc.targets.build`.
        extra: the extra of dlmc that brings what building needs.
        choices: quantizations by precision, the default first.
        options: fields of `BuildOptions` that it heeds besides those that all do.
        library: distribution that building takes; None where it only rewrites the graph.
        ahead_of_time: whether a machine without a GPU can build for one.
    """

    module: str
    extra: str
    choices: dict[Precision, tuple[Quantization, ...]]
    options: frozenset[str] = frozenset()
    library: str | None = None
    ahead_of_time: bool = False


_EVERYWHERE: tuple[Quantization, ...] = ("none", "int8", "int4", "w8a8")
_ON_GPUS: dict[Precision, tuple[Quantization, ...]] = {
    "float32": _EVERYWHERE,
    "float16": _EVERYWHERE,
    "bfloat16": _EVERYWHERE,
}

TARGETS: dict[str, Target] = {
    "onnxruntime-cpu": Target(
        "dlmc.targets.onnxruntime_cpu",
        "compile",
        {"float32": ("none", "int8", "int4", "w8a8")},
        library="onnxruntime",
    ),
    "openvino-cpu": Target(
        "dlmc.targets.openvino_cpu",
        "openvino",
        {
            "float32": ("none", "int8", "int4", "w8a8"),
            "bfloat16": ("none", "int8", "int4"),
        },
        frozenset({"model_cache"}),
        library="openvino",
    ),
    "onnxruntime-cuda": Target(
        "dlmc.targets.onnxruntime_cuda",
        "cuda",
        _ON_GPUS,
        frozenset({"execution_provider", "cuda_graph"}),
        ahead_of_time=True,
    ),
    "tensorrt": Target(
        "dlmc.targets.tensorrt",
        "tensorrt",
        _ON_GPUS,
        frozenset({"refit", "version_compatible", "hardware_compatible", "timing_cache", "log"}),
        library="tensorrt",
    ),
    "tensorrt-rtx": Target(
        "dlmc.targets.tensorrt_rtx",
        "tensorrt-rtx",
        _ON_GPUS,
        frozenset({"compute_capability", "refit", "log"}),
        library="tensorrt-rtx-cu13",
        ahead_of_time=True,
    ),
}
