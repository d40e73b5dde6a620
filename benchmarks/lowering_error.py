"""Measure what each precision and quantization costs in accuracy, on the tracked checkpoints.

python benchmarks/lowering_error.py

States of short generations at several noise levels go through the lowered graphs and through the
bundle's own, all in ONNX Runtime on the CPU.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.lowering.calibrate import Feeds
from dlmc.lowering.lower import Form, Lowering, lower
from dlmc.lowering.states import record_states
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.generate import Generator
from machine import Table, parser, report

CHECKPOINTS = ("tiny-llada", "tiny-sdar")
CALIBRATION = ("12+7=?", "sort 3 1 2 9 7", "json name Bako, age 7")
TESTED = (
    "345+678=?",
    "77+15=?",
    "sort 8 8 1 5 6",
    "sort 4 0 2 9 1 3 7",
    "json city Rima, name Tolun",
    "901+99=?",
)
OWN: Form = "onnxruntime"
CHOICES = (
    Lowering("float16"),
    Lowering("float32", "int8"),
    Lowering("float32", "int8", OWN),
    Lowering("float32", "int4", block_size=32),
    Lowering("float32", "int4", block_size=128),
    Lowering("float32", "int4", OWN),
    Lowering("float32", "w8a8"),
)

Answers = list[dict[str, NDArray[Any]]]


def record(bundle: Bundle, prompts: tuple[str, ...]) -> list[Feeds]:
    """Return forwards of answers to ``prompts``, one position committed in each."""
    from dlmc.validate.reference import load_graph
    from dlmc_runtime.text import TextCodec

    text = (
        None if bundle.manifest.text is None else TextCodec.load(bundle.root, bundle.manifest.text)
    )
    with Generator(load_graph(bundle, bundle.manifest.profiles), text) as generator:
        sampler = replace(generator.sampler, threshold=None)
        requests = [
            generator.request(one, max_new_tokens=32, sampler=sampler, ignore_eos=True)
            for one in prompts
        ]
        return record_states(generator, requests)


def run(graph: Path, states: list[Feeds]) -> Answers:
    """Return what ONNX Runtime answers to each state."""
    session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    low = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    names = [value.name for value in session.get_outputs()]
    found = []
    for state in states:
        feeds = {n: v.astype(np.float16) if n in low else v for n, v in state.items()}
        found.append(dict(zip(names, session.run(names, feeds), strict=True)))
    return found


def compare(found: Answers, wanted: Answers) -> tuple[float, float]:
    """Return the share of equal best tokens, and how far their log-probabilities are off (RMS)."""

    def every(answers: Answers, name: str) -> NDArray[Any]:
        return np.concatenate([np.ravel(one[name][..., 0:1]) for one in answers])

    def sure(answers: Answers) -> NDArray[Any]:
        total = np.concatenate([np.ravel(one["logsumexp"]) for one in answers])
        return np.asarray(every(answers, "top_logits") - total)

    same = float(np.mean(every(found, "top_ids") == every(wanted, "top_ids")))
    return same, float(np.sqrt(np.mean((sure(found) - sure(wanted)) ** 2)))


def measure(bundle: Bundle, folder: Path) -> Iterator[tuple[str | float, ...]]:
    """Yield a row for each choice."""
    calibration, states = record(bundle, CALIBRATION), record(bundle, TESTED)
    wanted = run(bundle.root / bundle.manifest.graph, states)
    for number, how in enumerate(CHOICES):
        target = folder / f"{bundle.root.name}-{number}"
        made = lower(bundle, how, target, calibration if how.quantization == "w8a8" else None)
        size = sum((target / name).stat().st_size for name in made.weights)
        same, error = compare(run(target / made.graph, states), wanted)
        block = how.quantization == "int4" or (how.quantization, how.form) == ("int8", OWN)
        label = f"{how.precision}, {how.quantization}, {how.form}"
        yield bundle.root.name, label, how.block_size if block else 0, size, same, error


def main() -> None:
    """Export the tracked checkpoints, lower them in every way and print the table."""
    arguments = parser(__doc__).parse_args()
    rows: list[tuple[str | float, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        for checkpoint in CHECKPOINTS:
            source = Path(__file__).parent.parent / "artifacts" / checkpoint
            root = Path(name) / checkpoint
            export_checkpoint(ExportOptions(str(source), root))
            rows += measure(Bundle.open(root), Path(name))
    columns = ("checkpoint", "graph", "block", "bytes of weights", "same best token", "RMS, nats")
    report(Table("lowering_error", columns, tuple(rows)), arguments.json)


if __name__ == "__main__":
    main()
