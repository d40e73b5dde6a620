"""Lowering: the graph of a bundle, rewritten for the target that builds it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
from numpy.typing import NDArray

from dlmc.lowering.passes.lower_precision import LOW, LowerPrecision
from dlmc.lowering.write import GRAPH, write_model
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import DlmcError, UsageError
from dlmc_runtime.manifest import DataType

Precision = Literal["float32", "float16", "bfloat16"]
Quantization = Literal["none", "int8", "int4", "w8a8"]
Form = Literal["qdq", "matmulnbits"]


@dataclass(frozen=True)
class Lowering:
    """What the graph of a target computes in.

    Attributes:
        precision: type of values and caches outside the parts that stay float32.
        quantization: how the weights of the layers' linear maps are stored.
        form: how quantized weights are written down: ``qdq`` is plain ONNX, ``matmulnbits`` an
            operator of ONNX Runtime.
        block_size: weights that share a scale in ``int4``.
    """

    precision: Precision = "float32"
    quantization: Quantization = "none"
    form: Form = "qdq"
    block_size: int = 32


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
    cache_dtype: DataType


def lower(
    bundle: Bundle,
    how: Lowering,
    folder: Path,
    calibration: Sequence[Mapping[str, NDArray[Any]]] | None = None,
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
    model = ir.load(bundle.root / bundle.manifest.graph)
    for each in _passes(how):
        each(model)
    try:
        weights = write_model(model, bundle.root, folder)
    except OSError as error:
        raise DlmcError(
            f"cannot write the lowered graph to {folder}: {error.strerror or error}",
            "check the path, its rights and the space on its disk",
        ) from error
    return Lowered(GRAPH, weights, how.precision)


def _check(how: Lowering, calibration: Sequence[Mapping[str, NDArray[Any]]] | None) -> None:
    if how.quantization != "none":
        raise UsageError(f"no quantization is called {how.quantization!r}", "use none")
    if calibration:
        raise UsageError(f"{how.quantization} takes no calibration", "leave it out")


def _passes(how: Lowering) -> list[ir.passes.InPlacePass]:
    """Return what is done to the graph, in order."""
    passes: list[ir.passes.InPlacePass] = []
    if how.precision in LOW:
        passes.append(LowerPrecision(LOW[how.precision]))
    return passes
