"""Weight files of the bundle's own, for checkpoints that store experts one by one.

The graph reads the experts of a layer as one tensor, which no byte range of such a checkpoint is.
Whatever lies in a file with such experts is written anew, tensor by tensor; the bundle then needs
nothing of that file.
"""

from collections.abc import Callable, Iterator, Mapping

from dlmc.checkpoint import Stack, TensorLocation, Weight
from dlmc.checkpoint.safetensors_header import DTYPE_BITS, read_header
from dlmc.checkpoint.safetensors_writer import TensorPlan, numbered, write_safetensors
from dlmc.export.bundle_writer import BundleWriter
from dlmc.export.progress import byte_progress
from dlmc.folder_writer import sync_file
from dlmc_runtime.errors import CheckpointError

STEM = "experts"
SHARD_BYTES = 4_000_000_000
_PIECE = 1 << 22


def referenced(weights: Mapping[str, Weight]) -> dict[str, TensorLocation]:
    """Return the parameters that the graph can read where they lie in the checkpoint."""
    stacks = [one for one in weights.values() if isinstance(one, Stack)]
    taken_apart = {part.file for stack in stacks for part in stack.parts}
    return {
        name: one
        for name, one in weights.items()
        if isinstance(one, TensorLocation) and one.file not in taken_apart
    }


def own_files(
    weights: Mapping[str, Weight], shard_bytes: int = SHARD_BYTES
) -> dict[str, tuple[TensorPlan, ...]]:
    """Return the files to write and what each will hold, by file name; {} where none is needed.

    Tensors are called as the parameters of the denoiser.

    Raises:
        CheckpointError: a file that is used where it lies has the name of one of them.
    """
    kept = referenced(weights)
    left = weights.keys() - kept.keys()
    tensors = [
        TensorPlan(name, one.dtype, one.shape) for name, one in weights.items() if name in left
    ]
    files = {
        # Wider types first, so that every tensor is aligned to its own values.
        name: tuple(sorted(shard, key=lambda one: -DTYPE_BITS[one.dtype]))
        for name, shard in numbered(STEM, tensors, shard_bytes).items()
    }
    taken = sorted(files.keys() & {one.file.name for one in kept.values()})
    if taken:
        raise CheckpointError(f"the checkpoint has a file {taken[0]} of its own", "rename it")
    return files


def write_own_files(
    weights: Mapping[str, Weight],
    files: Mapping[str, tuple[TensorPlan, ...]],
    bundle: BundleWriter,
) -> dict[str, TensorLocation]:
    """Write files, given by their path in the bundle; return where each of their tensors lies.

    Raises:
        CheckpointError: a file of the checkpoint ends before a tensor does.
        OSError: the disk refuses.
    """
    written: dict[str, TensorLocation] = {}
    total = sum(one.size for shard in files.values() for one in shard)
    with byte_progress("stacking experts", total) as advance:

        def values(tensor: TensorPlan) -> Iterator[bytes]:
            for part in _parts(weights[tensor.name]):
                yield from _bytes_of(part, advance)

        for name, tensors in files.items():
            path = bundle.make(name)
            write_safetensors(path, tensors, values)
            sync_file(path)
            written |= read_header(path)
    return written


def _parts(weight: Weight) -> tuple[TensorLocation, ...]:
    return weight.parts if isinstance(weight, Stack) else (weight,)


def _bytes_of(tensor: TensorLocation, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the bytes of a tensor in pieces."""
    left = tensor.length
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        while left and (piece := file.read(min(left, _PIECE))):
            left -= len(piece)
            advance(len(piece))
            yield piece
    if left:
        raise CheckpointError(
            f"{tensor.file} was cut short while it was read", "download or write it again"
        )
