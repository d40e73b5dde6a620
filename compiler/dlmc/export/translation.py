"""How the denoiser enters a graph: its operators, and the exporter's one pass over them."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import onnx_ir as ir
import torch
from onnx.defs import OpSchema
from onnxscript import opset23 as op
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


def _cast(x: Any, dtype: int) -> Any:
    """Translate a conversion, which is often one of float32 to float32."""
    return op.Identity(x) if x.dtype == dtype else op.Cast(x, to=dtype)


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Translate dimensions made one; those after them have to be fixed numbers."""
    start, end = start_dim % len(x.shape), end_dim % len(x.shape) + 1
    return _reshape(x, start, [_product(x.shape[start:end]), *x.shape[end:]])


def _unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    """Translate a dimension made several; those after it have to be fixed numbers."""
    at = dim % len(x.shape)
    whole = x.shape[at]
    if isinstance(whole, int):
        sizes = [whole // -math.prod(sizes) if size < 0 else size for size in sizes]
    return _reshape(x, at, [*sizes, *x.shape[at + 1 :]])


def _reshape(x: Any, kept: int, sizes: Sequence[int]) -> Any:
    """Return ``x`` with its first dimensions kept and others of these sizes."""
    shape: Any = op.Constant(value_ints=[0] * kept + [*sizes])
    return op.Reshape(x, shape)


def _product(sizes: Sequence[Any]) -> int:
    """Return how many numbers there are; where a size has a name -1, which is then inferred."""
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else -1


def _and(x: Any, y: Any) -> Any:
    """Translate ``x & y``."""
    return op.And(x, y) if x.dtype == ir.DataType.BOOL else op.BitwiseAnd(x, y)


_ATEN = torch.ops.aten

TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    mix._opoverload: _mixture,
    _ATEN.to.dtype: _cast,
    _ATEN.flatten.using_ints: _flatten,
    _ATEN.unflatten.int: _unflatten,
    _ATEN.__and__.Tensor: _and,
}
"""What ``torch.onnx.export`` takes as ``custom_translation_table``."""


@contextmanager
def decomposing_where_needed() -> Iterator[None]:
    """Let the exporter rewrite only those programs that have something to rewrite.

    It runs every program a second time to decompose operators it cannot translate and to get rid
    of those that write in place, which takes half of its time. A denoiser has neither, with
    `TRANSLATIONS`; what these do not cover fails to export.
    """
    decompose = torch.export.ExportedProgram.run_decompositions

    def run(
        program: torch.export.ExportedProgram, decomp_table: dict[Any, Callable[..., Any]]
    ) -> torch.export.ExportedProgram:
        operators = {node.target for node in program.graph.nodes if node.op == "call_function"}
        needed = any(
            isinstance(target, torch._ops.HigherOrderOperator)
            or target in decomp_table
            or (isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable)
            for target in operators
        )
        return decompose(program, decomp_table) if needed else program

    with patch.object(torch.export.ExportedProgram, "run_decompositions", run):
        yield
