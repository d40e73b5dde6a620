"""A graph that was quantized elsewhere, checked and copied into an engine's folder."""

from pathlib import Path

from dlmc_runtime.engines.base import plan_dtype
from dlmc_runtime.errors import DlmcError, UsageError
from dlmc_runtime.manifest import Manifest, Precision

_CACHES: dict[str, Precision] = {
    "FLOAT": "float32",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
}


def take(path: Path, manifest: Manifest, folder: Path) -> Precision:
    """Copy an ONNX graph and its weights, which stream from its files.

    Args:
        path: the graph.
        manifest: of the bundle, whose inputs and outputs the graph must have.
        folder: where the copy goes.

    Returns:
        The type of its caches.

    Raises:
        UsageError: it cannot be read, or has other inputs and outputs than the bundle's graph.
        DlmcError: the copy cannot be written.
    """
    import onnx_ir as ir
    from google.protobuf.message import DecodeError

    from dlmc.lowering.write import copy_all, write_model

    try:
        model = ir.load(path)
    except (OSError, ValueError, TypeError, RuntimeError, DecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path} cannot be read ({reason})", "give an ONNX graph") from error
    graph = model.graph
    caches = {v.dtype.name for v in graph.inputs if v.dtype and str(v.name).startswith("past_")}
    cache = next(iter(caches), "FLOAT")
    if len(caches) != 1 or cache not in _CACHES:
        raise UsageError(f"{path} has caches of the types {sorted(caches)}", "quantize it again")
    precision = _CACHES[cache]
    for found, promised in ((graph.inputs, manifest.inputs), (graph.outputs, manifest.outputs)):
        ours = [(value.name, value.dtype.name if value.dtype else None) for value in found]
        wanted = [(s.name, _name(plan_dtype(s, precision))) for s in promised]
        if ours != wanted:
            odd = sorted(str(one) for one, _ in {*ours} ^ {*wanted}) or [str(ours[0][0])]
            raise UsageError(
                f"{path} and the bundle's graph disagree about {odd[0]}",
                "quantize the bundle's denoiser.onnx and keep its inputs and outputs",
            )
    try:
        copy_all(model)
        write_model(model, path.parent, folder)
    except OSError as error:
        raise DlmcError(f"cannot copy {path} ({error.strerror})", "make room") from error
    return precision


def _name(dtype: str) -> str:
    return {"float32": "FLOAT"}.get(dtype, dtype.upper())
