"""Where a bundle can be built: target name to the module whose ``build`` makes the engine."""

TARGETS: dict[str, str] = {
    "onnxruntime-cpu": "dlmc.targets.onnxruntime_cpu",
}
