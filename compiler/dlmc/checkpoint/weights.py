"""Matching a checkpoint's tensors with the parameters of its denoiser."""

from collections.abc import Mapping

from dlmc.checkpoint.checkpoint import Checkpoint
from dlmc.checkpoint.stack import Stack, Weight
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


def tensor_shapes(family: Family, spec: FamilySpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a checkpoint, in the network's order."""
    names, stacked = family.weight_names(spec), family.stacked_names(spec)
    found: dict[str, tuple[int, ...]] = {}
    for ours, shape in expected_shapes(spec).items():
        if ours in names:
            found[names[ours]] = shape
        else:
            experts, rows, *columns = shape
            parts = stacked[ours]
            found |= dict.fromkeys(parts, (rows * experts // len(parts), *columns))
    return found


def check_weights(family: Family, spec: FamilySpec, checkpoint: Checkpoint) -> dict[str, Weight]:
    """Return where the values of every parameter of the denoiser lie.

    Raises:
        CheckpointError: tensors are missing, left over, of another shape, or of a dtype other
            than F32, F16 and BF16, or those of one parameter differ in dtype. One error tells all
            of it: counts, and up to five names each.
    """
    shapes, found = expected_shapes(spec), checkpoint.tensors
    parts = tensor_shapes(family, spec)
    needed = {name: found[name] for name in parts if name in found}
    stacked = family.stacked_names(spec)
    left_over = [
        name
        for name in found.keys() - parts.keys() - family.duplicates(spec)
        if not name.startswith(family.unread)
    ]
    problems = {
        "missing": [repr(name) for name in parts if name not in found],
        "left over": [repr(name[:120]) for name in sorted(left_over)],
        "of another shape": [
            f"{name!r} {list(tensor.shape)} instead of {list(parts[name])}"
            for name, tensor in needed.items()
            if tensor.shape != parts[name]
        ],
        f"of a dtype other than {', '.join(WEIGHT_DTYPES)}": [
            f"{name!r} {tensor.dtype}"
            for name, tensor in needed.items()
            if tensor.dtype not in WEIGHT_DTYPES
        ],
        "of another dtype than the experts before": [
            f"{name!r} {needed[name].dtype}"
            for names in stacked.values()
            for name in names
            if name in needed and needed[name].dtype != needed.get(names[0], needed[name]).dtype
        ],
    }
    if any(problems.values()):
        raise CheckpointError(
            f"the tensors of {checkpoint.root} are not those of its config.json as"
            f" {family.name} reads it: {_summary(problems)}",
            "check that weights and config.json belong together",
        )
    plain: dict[str, Weight] = {
        ours: needed[theirs] for ours, theirs in family.weight_names(spec).items()
    }
    return plain | {
        ours: Stack(tuple(needed[name] for name in names), shapes[ours])
        for ours, names in stacked.items()
    }


def _summary(problems: Mapping[str, list[str]]) -> str:
    parts = []
    for what, names in problems.items():
        if names:
            more = ", ..." if len(names) > _SHOWN else ""
            parts.append(f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{more})")
    return "; ".join(parts)
