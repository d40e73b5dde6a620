"""Matching a checkpoint's tensors with the parameters of its denoiser."""

from collections.abc import Mapping

from dlmc.checkpoint.checkpoint import Checkpoint
from dlmc.checkpoint.safetensors_header import TensorLocation
from dlmc.families.spec import Family, FamilySpec
from dlmc_runtime.errors import CheckpointError

WEIGHT_DTYPES = ("F32", "F16", "BF16")
_SHOWN = 5


def expected_shapes(spec: FamilySpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of the denoiser, in the network's order."""
    import torch

    from dlmc.denoiser.network import network

    with torch.device("meta"):
        denoiser = network(spec.denoiser)
    return {name: tuple(weight.shape) for name, weight in denoiser.named_parameters()}


def check_weights(
    family: Family, spec: FamilySpec, checkpoint: Checkpoint
) -> dict[str, TensorLocation]:
    """Return where the values of every parameter of the denoiser lie.

    Raises:
        CheckpointError: tensors are missing, left over, of another shape, or of a dtype other
            than F32, F16 and BF16. One error tells all of it: counts, and up to five names each.
    """
    names = family.weight_names(spec)
    shapes = expected_shapes(spec)
    found = checkpoint.tensors
    needed = {ours: found[theirs] for ours, theirs in names.items() if theirs in found}
    wrong_shape = [
        f"{names[ours]!r} {list(tensor.shape)} instead of {list(shapes[ours])}"
        for ours, tensor in needed.items()
        if tensor.shape != shapes[ours]
    ]
    wrong_dtype = [
        f"{names[ours]!r} {tensor.dtype}"
        for ours, tensor in needed.items()
        if tensor.dtype not in WEIGHT_DTYPES
    ]
    left_over = found.keys() - set(names.values()) - family.duplicates(spec)
    problems = {
        "missing": [repr(theirs) for theirs in names.values() if theirs not in found],
        "left over": [repr(name[:120]) for name in sorted(left_over)],
        "of another shape": wrong_shape,
        f"of a dtype other than {', '.join(WEIGHT_DTYPES)}": wrong_dtype,
    }
    if any(problems.values()):
        raise CheckpointError(
            f"the tensors of {checkpoint.root} are not those of its config.json as"
            f" {family.name} reads it: {_summary(problems)}",
            "check that weights and config.json belong together",
        )
    return needed


def _summary(problems: Mapping[str, list[str]]) -> str:
    parts = []
    for what, names in problems.items():
        if names:
            more = ", ..." if len(names) > _SHOWN else ""
            parts.append(f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{more})")
    return "; ".join(parts)
