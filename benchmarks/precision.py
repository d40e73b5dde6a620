"""What precision and quantization cost and bring, on the tiny checkpoints.

    PYTHONPATH=recipes/tiny python benchmarks/precision.py

Every precision and quantization of every target that builds and runs here answers the same
held-out problems with the bundle's own sampler; engines take turns of ten problems. Size is what
the engine reads: its own files, and the bundle's weights where it has none. At 1.3 M weights fixed
costs outweigh them, so speeds here compare engines with each other and not formats.
"""

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dlmc.bench.machine import Watch, settle
from dlmc.targets import TARGETS
from dlmc_runtime import Generator, preflight
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines import ENGINES
from machine import ROOT, Cell, Table, dlmc, parser, report
from tasks import TASKS, Problem, problems

TURN = 10
NAMES = ("tiny-llada", "tiny-sdar")
COLUMNS = (
    "checkpoint",
    "engine",
    "precision",
    "quantized",
    "sampler",
    "problems",
    "exact",
    "exact %",
    "tokens per forward",
    "MB",
    "tokens per second",
    "ms per forward",
    "others %",
)


@dataclass
class Tally:
    """What one engine has answered so far."""

    generator: Generator
    exact: int = 0
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0

    def ask(self, problem: Problem) -> None:
        """Answer one problem and count."""
        assert self.generator.text is not None  # noqa: S101  (the tiny checkpoints have one)
        prompt = self.generator.text.chat([{"role": "user", "content": problem.question}])
        result = self.generator.generate(prompt)
        self.exact += result.text == problem.answer
        self.tokens += len(result.tokens)
        self.forwards += result.forwards
        self.seconds += result.seconds


def build_all(root: Path) -> None:
    """Build whatever this machine can build and run."""
    here = preflight.ThisMachine()
    for target, able in TARGETS.items():
        kind = ENGINES.get(target)
        if kind is None or kind.gpu or here.library(kind.distribution) is None:
            continue
        for precision, quantizations in able.choices.items():
            for quantization in quantizations:
                options = ("--precision", precision, "--quantize", quantization)
                dlmc("build", root, "--target", target, *options, "--batch", "1", "--no-validate")


def size(bundle: Bundle, name: str) -> float:
    """Return the MB an engine reads."""
    record = bundle.engine(name)
    files = dict(record.files)
    if record.plan not in files:
        files |= {weights: bundle.manifest.files[weights] for weights in bundle.manifest.weights}
    return sum(one.size for one in files.values()) / 1e6


def batched(asked: list[Problem]) -> Iterator[list[Problem]]:
    """Yield problems in turns."""
    for start in range(0, len(asked), TURN):
        yield asked[start : start + TURN]


def measure(checkpoint: str, folder: Path, count: int, seed: int) -> list[tuple[Cell, ...]]:
    """Export and build one checkpoint and ask every engine every problem."""
    root = folder / checkpoint
    source = ROOT / "artifacts" / checkpoint
    dlmc("export", source, "-o", root, "--recipe", f"tiny/{checkpoint}")
    build_all(root)
    bundle = Bundle.open(root)
    asked = [
        problem
        for task in TASKS
        for problem in islice(
            problems(task, random.Random(f"{seed}/{task}"), held_out=True),  # noqa: S311
            count,
        )
    ]
    with ExitStack() as stack:
        tallies = {
            name: Tally(stack.enter_context(Generator.of(bundle, name)))
            for name in bundle.engine_names()
        }
        for tally in tallies.values():
            tally.ask(asked[0])  # warms up
        tallies = {name: Tally(tally.generator) for name, tally in tallies.items()}
        with Watch() as watch:
            for turn in batched(asked):
                for tally in tallies.values():
                    settle()
                    for problem in turn:
                        tally.ask(problem)
    spec = bundle.manifest.sampler
    sampler = ", ".join((spec.name, *(f"{k} {v}" for k, v in spec.parameters.items())))
    others = 100 * (watch.noise.others or 0.0)
    rows: list[tuple[Cell, ...]] = []
    for name, tally in tallies.items():
        record = bundle.engine(name)
        about = (checkpoint, name, record.precision, record.quantization, sampler)
        right = (len(asked), tally.exact, 100 * tally.exact / len(asked))
        speed = (tally.tokens / tally.seconds, 1e3 * tally.seconds / tally.forwards)
        tpf = tally.tokens / tally.forwards
        rows.append((*about, *right, tpf, size(bundle, name), *speed, others))
    return rows


def main() -> None:
    """Measure both checkpoints and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--problems", type=int, default=50, help="problems of each task")
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row for name in NAMES for row in measure(name, Path(folder), given.problems, given.seed)
        ]
    report(Table("precision", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
