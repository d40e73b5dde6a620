"""What mixing experts costs in each form of the graph: one layer's experts alone, on this CPU.

    python benchmarks/experts.py

The forms: ``batched`` is the body of the function that a bundle's graph calls, all experts over all
tokens; ``grouped`` gathers for each expert the tokens that use it, with shapes that depend on data,
which a bundle's graph may not have; ``native`` is ``com.microsoft.MoE`` of ONNX Runtime and
``QMoE`` its form for integers. Weights are random, every token uses its experts at random. Each
form takes turns with ``batched`` in ONNX Runtime, call by call; times are the smallest and the
median of them. Both must give the same numbers.
"""

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import onnx_ir as ir

from dlmc.checkpoint.random_weights import random_weights
from dlmc.checkpoint.safetensors_header import read_header
from dlmc.checkpoint.safetensors_writer import TensorPlan, write_safetensors
from dlmc.denoiser.config import MIXTURE
from dlmc.export.mixture import OPSET
from dlmc.lowering.passes.inline_mixture import InlineMixture
from dlmc.lowering.passes.native_mixture import NativeMixture
from dlmc.lowering.write import write_model
from machine import Cell, Table, parser, report

THREADS, CALLS, BLOCK = 2, 7, 32
COLUMNS = (
    "experts",
    "used",
    "hidden",
    "width",
    "tokens",
    "form",
    "engine",
    "ms",
    "ms (median)",
    "batched in the same turns, ms",
    "times as fast as batched",
    "largest difference",
)
_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
_WEIGHTS = "experts.safetensors"


@dataclass(frozen=True)
class Shape:
    """One layer's experts, and how many tokens come at once."""

    experts: int
    used: int
    hidden: int
    width: int
    tokens: int

    def feeds(self) -> dict[str, Any]:
        """Return tokens, and what each gives the experts it uses."""
        rng = np.random.default_rng(0)
        shares = np.zeros((1, self.tokens, self.experts), np.float32)
        for row in shares[0]:
            used = rng.choice(self.experts, self.used, replace=False)
            row[used] = rng.dirichlet(np.ones(self.used))
        x = rng.standard_normal((1, self.tokens, self.hidden), np.float32)
        return {"x": x, "weights": shares}

    def write(self, folder: Path) -> None:
        """Write random weights."""
        shapes = {
            "gate_up": (self.experts, 2 * self.width, self.hidden),
            "down": (self.experts, self.hidden, self.width),
        }
        plans = [TensorPlan(name, "F32", shape) for name, shape in shapes.items()]
        write_safetensors(folder / _WEIGHTS, plans, random_weights(0))

    def model(self, folder: Path) -> ir.Model:
        """Return a graph that mixes the experts and does nothing else."""
        inputs = [
            ir.Value(name=name, type=ir.TensorType(_FLOAT), shape=ir.Shape((1, "tokens", size)))
            for name, size in (("x", self.hidden), ("weights", self.experts))
        ]
        weights = [
            _initializer(folder, name, place.offset, place.length, place.shape)
            for name, place in read_header(folder / _WEIGHTS).items()
        ]
        node = ir.node(
            MIXTURE[1],
            [*inputs, *weights],
            domain=MIXTURE[0],
            attributes={"activation": "silu", "k": self.used},
            name="MoE",
        )
        (mixed,) = node.outputs
        mixed.name, mixed.type, mixed.shape = "mixed", ir.TensorType(_FLOAT), inputs[0].shape
        graph = ir.Graph(
            inputs,
            [mixed],
            nodes=[node],
            initializers=weights,
            opset_imports={"": OPSET, MIXTURE[0]: 1},
            name="experts",
        )
        return ir.Model(graph, ir_version=10)


def _initializer(
    folder: Path, name: str, offset: int, length: int, shape: tuple[int, ...]
) -> ir.Value:
    tensor = ir.ExternalTensor(
        _WEIGHTS, offset, length, _FLOAT, shape=ir.Shape(shape), name=name, base_dir=folder
    )
    return ir.Value(
        name=name, type=ir.TensorType(_FLOAT), shape=ir.Shape(shape), const_value=tensor
    )


def group(model: ir.Model) -> None:
    """Let every expert see the tokens that use it alone, expert after expert."""
    graph = model.graph
    (node,) = list(graph)
    x, weights = graph.inputs
    tensors: list[Any] = [graph.initializers[name].const_value for name in ("gate_up", "down")]
    experts, _, hidden = tensors[0].shape.numpy()

    def emit(op: str, inputs: list[Any], kind: ir.DataType = _FLOAT, **own: Any) -> Any:
        made = ir.node(op, inputs, attributes=own, num_outputs=own.get("num_outputs", 1))
        graph.insert_before(node, made)
        for value in made.outputs:
            value.type = ir.TensorType(kind)
        return made.outputs[0] if len(made.outputs) == 1 else made.outputs

    def ints(*values: int) -> Any:
        return emit("Constant", [], _INT64, value_ints=list(values))

    def part(tensor: Any, expert: int) -> ir.Value:
        length = tensor.length // experts
        value = _initializer(
            Path(tensor.base_dir),
            f"{tensor.name}.{expert}",
            tensor.offset + expert * length,
            length,
            tuple(tensor.shape.numpy()[1:]),
        )
        graph.register_initializer(value)
        return value

    tokens = emit("Reshape", [x, ints(-1, hidden)])
    columns = emit("Transpose", [emit("Reshape", [weights, ints(-1, experts)])], perm=[1, 0])
    mixed = emit("Mul", [tokens, emit("Constant", [], value_float=0.0)])
    for expert in range(experts):
        column = emit("Gather", [columns, emit("Constant", [], _INT64, value_int=expert)], axis=0)
        users = emit("Reshape", [emit("NonZero", [column], _INT64), ints(-1)], _INT64)
        own = emit("Gather", [tokens, users], axis=0)
        gates = emit("Gemm", [own, part(tensors[0], expert)], transB=1)
        gate, up = emit("Split", [gates], axis=1, num_outputs=2)
        gated = emit("Mul", [emit("Mul", [gate, emit("Sigmoid", [gate])]), up])
        answer = emit("Gemm", [gated, part(tensors[1], expert)], transB=1)
        share = emit("Unsqueeze", [emit("Gather", [column, users]), ints(1)])
        places = emit("Unsqueeze", [users, ints(1)], _INT64)
        mixed = emit("ScatterND", [mixed, places, emit("Mul", [answer, share])], reduction="add")
    back = emit("Reshape", [mixed, emit("Shape", [x], _INT64)])
    ir.convenience.replace_all_uses_with(node.outputs[0], back, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    back.name = "mixed"
    for name in ("gate_up", "down"):
        del graph.initializers[name]
    model.opset_imports.pop(MIXTURE[0])


def _native(bits: int) -> Callable[[ir.Model], object]:
    return lambda model: (NativeMixture(bits, BLOCK)(model), InlineMixture()(model))


Run = Callable[[dict[str, Any]], Any]
FORMS: dict[str, Callable[[ir.Model], object]] = {
    "batched": InlineMixture(),
    "grouped": group,
    "native": _native(0),
    "native int8": _native(8),
    "native int4": _native(4),
}


def onnxruntime(graph: Path) -> Run:
    """Load a graph into ONNX Runtime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


def openvino(graph: Path, precision: str) -> Run:
    """Load a graph into OpenVINO."""
    import openvino as ov

    how = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": THREADS}
    compiled = ov.Core().compile_model(str(graph), "CPU", how)
    return lambda feeds: compiled(feeds)[0]


ENGINES: dict[str, Callable[[Path], Run]] = {
    "onnxruntime float32": onnxruntime,
    "openvino float32": lambda graph: openvino(graph, "f32"),
    "openvino bfloat16": lambda graph: openvino(graph, "bf16"),
}
MEASURED = (
    ("batched", "onnxruntime float32"),
    ("grouped", "onnxruntime float32"),
    ("native", "onnxruntime float32"),
    ("native int8", "onnxruntime float32"),
    ("native int4", "onnxruntime float32"),
    ("batched", "openvino float32"),
    ("grouped", "openvino float32"),
    ("batched", "openvino bfloat16"),
)
SHAPES = (
    Shape(16, 4, 1024, 256, 256),
    Shape(128, 8, 2048, 512, 32),
    Shape(256, 8, 2048, 512, 32),
)


@contextmanager
def loaded(shape: Shape, source: Path, form: str, engine: str) -> Iterator[Run]:
    """Yield a form in an engine, and forget it afterwards."""
    with tempfile.TemporaryDirectory(dir=source) as folder:
        model = shape.model(source)
        FORMS[form](model)
        write_model(model, source, Path(folder))
        run = ENGINES[engine](Path(folder) / "denoiser.onnx")
        yield run
        del run
        gc.collect()


def turns(runs: tuple[Run, Run], feeds: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return the seconds that each takes, call by call in turns, after one call each."""
    taken: tuple[list[float], list[float]] = ([], [])
    for run in runs:
        run(feeds)
    for _ in range(CALLS):
        for run, found in zip(runs, taken, strict=True):
            start = perf_counter()
            run(feeds)
            found.append(perf_counter() - start)
    return taken


def measure(shape: Shape, root: Path) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for every form and engine."""
    shape.write(root)
    feeds = shape.feeds()
    with loaded(shape, root, *MEASURED[0]) as batched:
        wanted = batched(feeds)
        for form, engine in MEASURED:
            try:
                with loaded(shape, root, form, engine) as run:
                    off = float(np.abs(run(feeds) - wanted).max() / np.abs(wanted).max())
                    own, other = turns((run, batched), feeds)
            except RuntimeError as error:  # what the engine says where it cannot
                print(f"{form} in {engine}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
                continue
            yield (
                *vars(shape).values(),
                form,
                engine,
                1e3 * min(own),
                1e3 * median(own),
                1e3 * min(other),
                min(other) / min(own),
                off,
            )


def main() -> None:
    """Measure all shapes."""
    options = parser(__doc__).parse_args()
    rows: list[tuple[Cell, ...]] = []
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as root:
            for row in measure(shape, Path(root)):
                print(row, file=sys.stderr)
                rows.append(row)
    report(Table("experts", COLUMNS, tuple(rows)), options.json)


if __name__ == "__main__":
    main()
