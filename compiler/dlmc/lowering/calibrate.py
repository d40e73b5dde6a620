"""How large the activations of a model get, measured on states of real generations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from dlmc.lowering.linear import linears
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import EngineError, UsageError

Feeds = Mapping[str, NDArray[Any]]
"""The graph's inputs by name: one recorded forward."""

_FOLDER = "session.model_external_initializers_file_folder_path"
_NOTHING_BUT_CRASHES = 4


def magnitudes(bundle: Bundle, states: Sequence[Feeds], quantile: float = 1.0) -> dict[str, float]:
    """Return, by name of its ``MatMul``, how large the values get that a linear map multiplies.

    The bundle's graph runs in ONNX Runtime with one more output a map, the largest magnitude at
    each position, so that nothing of the size of an activation is ever kept.

    Args:
        bundle: the bundle.
        states: recorded forwards, from several prompts and noise levels.
        quantile: over all positions of all states; below 1 the loudest positions are cut off.

    Raises:
        UsageError: no states, or a quantile outside of (0, 1].
        EngineError: ONNX Runtime refuses the graph or a state, or a magnitude is not finite.
    """
    if not states:
        raise UsageError("no states to calibrate with", "record some generations first")
    if not 0 < quantile <= 1:
        raise UsageError(f"the quantile is {quantile}", "it must be above 0 and at most 1")
    model = ir.load(bundle.root / bundle.manifest.graph)
    readers = _measure(model)
    found: dict[str, list[NDArray[np.float32]]] = {name: [] for name in readers}
    run = _session(model, bundle)
    for state in states:
        for name, peaks in zip(readers, run(list(readers), state), strict=True):
            found[name].append(np.ravel(peaks))
    return {
        product: _magnitude(np.concatenate(found[name]), quantile, product)
        for name, products in readers.items()
        for product in products
    }


def _magnitude(peaks: NDArray[np.float32], quantile: float, product: str) -> float:
    # An empty input has no peaks; a value that is not a number is its own quantile.
    magnitude = float(np.quantile(peaks, quantile, method="higher")) if len(peaks) else np.nan
    if not np.isfinite(magnitude):
        raise EngineError(f"the input of {product} is not finite", "check the checkpoint")
    return magnitude


def _measure(model: ir.Model) -> dict[str, list[str]]:
    """Add outputs that say how large the inputs of linear maps are; return who reads which."""
    graph = model.graph
    readers: dict[str, list[str]] = {}
    for linear in list(linears(graph)):
        name = f"{linear.values.name}.magnitude"
        if name not in readers:
            last = graph.initializers.get("magnitude.axis")
            if last is None:
                tensor = ir.tensor(np.array([-1]), name="magnitude.axis")
                last = ir.Value(name=tensor.name, const_value=tensor)
                graph.register_initializer(last)
            size = ir.node("Abs", [linear.values])
            peak = ir.node("ReduceMax", [size.outputs[0], last], attributes={"keepdims": 0})
            graph.insert_before(linear.product, [size, peak])
            peak.outputs[0].name, peak.outputs[0].type = name, ir.TensorType(ir.DataType.FLOAT)
            graph.outputs.append(peak.outputs[0])
        readers.setdefault(name, []).append(str(linear.product.name))
    return readers


def _session(model: ir.Model, bundle: Bundle) -> Any:
    """Return a function that runs the graph on the bundle's weights."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _NOTHING_BUT_CRASHES
    options.add_session_config_entry(_FOLDER, str(bundle.root))
    graph = ir.to_proto(model).SerializeToString()

    def refuse(error: Exception) -> EngineError:
        reason = str(error).splitlines()[0]
        return EngineError(
            f"ONNX Runtime {onnxruntime.__version__} cannot run {bundle.root} ({reason})",
            "record the states from this bundle",
        )

    try:
        session = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:
        raise refuse(error) from error

    def run(names: list[str], feeds: Feeds) -> list[NDArray[Any]]:
        try:
            answers: list[NDArray[Any]] = session.run(names, dict(feeds))
        except Exception as error:
            raise refuse(error) from error
        return answers

    return run
