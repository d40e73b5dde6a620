"""How the denoiser's own operators enter a graph: as calls of the graph's own functions."""

from collections.abc import Callable
from typing import Any

from onnx.defs import OpSchema
from onnxscript.values import Op, Opset

from dlmc.denoiser.config import MIXTURE
from dlmc.denoiser.moe import mix


def _schema() -> OpSchema:
    names = ("x", "weights", "gate_up", "down")
    return OpSchema(
        MIXTURE[1],
        MIXTURE[0],
        1,
        inputs=[OpSchema.FormalParameter(name, "T") for name in names],
        outputs=[OpSchema.FormalParameter("mixed", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
        attributes=[
            OpSchema.Attribute("activation", OpSchema.AttrType.STRING),
            OpSchema.Attribute("k", OpSchema.AttrType.INT),
        ],
    )


def _mixture(x: Any, weights: Any, gate_up: Any, down: Any, kind: str, top_k: int) -> Any:
    """Translate `dlmc.denoiser.moe.mix` into a call of `MIXTURE`."""
    domain, name = MIXTURE
    call = Op(Opset(domain, 1), name, _schema())
    return call(x, weights, gate_up, down, activation=kind, k=top_k)


TRANSLATIONS: dict[Any, Callable[..., Any]] = {mix._opoverload: _mixture}
"""What ``torch.onnx.export`` takes as ``custom_translation_table``."""
