"""Lowering: the graph of a bundle, rewritten for the target that builds it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx_ir as ir
from google.protobuf.message import DecodeError

from dlmc.export.passes.check_graph import CheckGraph
from dlmc.lowering.calibrate import Feeds, magnitudes
from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.passes.gather_stored import GatherStored
from dlmc.lowering.passes.gemm_weights import GemmWeights
from dlmc.lowering.passes.inline_mixture import InlineMixture
from dlmc.lowering.passes.lower_precision import LOW, LowerPrecision
from dlmc.lowering.passes.matmul_nbits import DOMAIN, MatMulNBits
from dlmc.lowering.passes.native_mixture import NativeMixture
from dlmc.lowering.passes.quantize_activations import QuantizeActivations
from dlmc.lowering.passes.quantize_weights import QuantizeWeights
from dlmc.lowering.write import GRAPH, write_model
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import BundleError, DlmcError, UsageError
from dlmc_runtime.manifest import Manifest, Precision

__all__ = ["Form", "Lowered", "Lowering", "Precision", "Quantization", "lower"]

Quantization = Literal["none", "int8", "int4", "w8a8"]
Form = Literal["qdq", "onnxruntime"]

BLOCK_SIZES = (16, 32, 64, 128, 256)
_BITS: dict[Quantization, int] = {"int8": 8, "int4": 4, "w8a8": 8}
_DOMAINS: dict[Form, tuple[str, ...]] = {"qdq": (), "onnxruntime": (DOMAIN,)}


@dataclass(frozen=True)
class Lowering:
    """What the graph of a target computes in.

    Attributes:
        precision: type of values and caches outside the parts that stay float32.
        quantization: how the weights of the layers' linear maps are stored.
        form: how weights are written down: ``qdq`` is plain ONNX; ``onnxruntime`` has operators
            of its own for quantized ones, and reads others without widening and turning them.
        block_size: weights that share a scale in ``int4``.
        native_experts: whether ONNX Runtime's kernels for the CPU mix experts, where they can.
    """

    precision: Precision = "float32"
    quantization: Quantization = "none"
    form: Form = "qdq"
    block_size: int = 32
    native_experts: bool = False


@dataclass(frozen=True)
class Lowered:
    """A lowered graph on disk.

    Attributes:
        graph: path of the graph, relative to the folder it was written to.
        weights: the files it reads, relative to the same folder.
        cache_dtype: type of ``past_key_values`` and ``present``.
    """

    graph: str
    weights: tuple[str, ...]
    cache_dtype: Precision


def lower(
    bundle: Bundle,
    how: Lowering,
    folder: Path,
    calibration: Sequence[Feeds] | None = None,
) -> Lowered:
    """Lower the graph of ``bundle`` and write it into ``folder``.

    Args:
        bundle: an opened bundle.
        how: what to lower to.
        folder: where to write; made where it is missing.
        calibration: graph inputs by name of recorded denoising states, which ``w8a8`` needs.

    Raises:
        UsageError: ``how`` is not possible, or needs calibration.
        BundleError: the bundle has no weights, or its graph or weights cannot be read.
        CheckpointError: a weight is not finite, or too large for the precision.
        DlmcError: the disk refuses.
    """
    _check(how, calibration)
    bundle.require_weights()
    bundle.check_graph(bundle.manifest.graph)
    measured = magnitudes(bundle, calibration) if calibration else {}
    path = bundle.root / bundle.manifest.graph
    try:
        model = ir.load(path)
        for each in _passes(how, measured, bundle.manifest):
            each(model)
    except (DecodeError, ir.passes.PassError, ir.passes.InvariantError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise BundleError(f"{path} cannot be lowered ({reason})", "export it again") from error
    try:
        weights = write_model(model, bundle.root, folder)
    except OSError as error:
        raise DlmcError(
            f"cannot write the lowered graph to {folder}: {error.strerror or error}",
            "check the path, its rights and the space on its disk",
        ) from error
    return Lowered(GRAPH, weights, how.precision)


def _check(how: Lowering, calibration: Sequence[Feeds] | None) -> None:
    size = how.block_size
    if size not in BLOCK_SIZES:
        raise UsageError(f"the block size is {size}", f"choose one of {BLOCK_SIZES}")
    wanted = how.quantization == "w8a8"
    if wanted and not calibration:
        raise UsageError("w8a8 needs calibration", "record states of this bundle and pass them")
    if calibration and not wanted:
        raise UsageError(f"{how.quantization} takes no calibration", "leave it out")


def _passes(
    how: Lowering, measured: Mapping[str, float], manifest: Manifest
) -> Iterator[ir.passes.InPlacePass]:
    """Yield what is done to the graph, in order."""
    bits = _BITS.get(how.quantization, 0)
    if how.precision in LOW:
        yield LowerPrecision(LOW[how.precision], low_products=_low_products(how, manifest))
    if how.quantization == "w8a8":
        yield QuantizeActivations(measured)
    if how.form == "onnxruntime" and how.quantization in ("int8", "int4"):
        yield MatMulNBits(bits, how.block_size)
    elif how.quantization != "none":
        yield QuantizeWeights(bits, how.block_size)
    if how.native_experts:
        yield NativeMixture(bits, how.block_size)
    yield InlineMixture()
    if how.form == "onnxruntime":
        yield GatherStored()
        yield GemmWeights()
    yield CheckGraph(manifest.inputs, manifest.outputs, _DOMAINS[how.form])
    yield CheckTypes(LOW.get(how.precision, ir.DataType.FLOAT))


def _low_products(how: Lowering, manifest: Manifest) -> bool:
    """Whether the head multiplies in low precision.

    It does in bfloat16 where it expects embeddings: such models are run so by their reference, and
    in float32 the two products with a vocabulary of 262,144 take longer than all layers.
    """
    expects = any(spec.name == "next_self_conditioning" for spec in manifest.outputs)
    return expects and how.precision == "bfloat16"


def calls_functions(graph: Path) -> bool:
    """Return whether a graph calls functions of its own, which only ONNX Runtime reads.

    Raises:
        BundleError: it is no ONNX graph.
    """
    try:
        return bool(ir.load(graph).functions)
    except DecodeError as error:
        raise BundleError(f"{graph} cannot be read ({error})", "export it again") from error
