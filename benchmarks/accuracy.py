"""Exact answers of the tiny checkpoints on held-out problems, on built engines.

    python benchmarks/accuracy.py artifacts/demo/tiny-llada artifacts/demo/tiny-gemma

Every problem is asked as a chat, answered with the bundle's default sampler at its default
length, and counts only where the whole answer is right. Problems come from the tenth of all
questions that training never sees (`recipes/tiny/tasks.py`), drawn with the seed given.
"""

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from dlmc_runtime import Generator
from machine import ROOT, Table, parser, report
from tasks import TASKS, Problem, problems

BUNDLES = [ROOT / "artifacts" / "demo" / name for name in ("tiny-llada", "tiny-sdar", "tiny-gemma")]
COLUMNS = (
    "checkpoint",
    "target",
    "sampler",
    "seed",
    "task",
    "problems",
    "exact",
    "exact %",
    "tokens per forward",
    "tokens per second",
)


def measure(generator: Generator, asked: Sequence[Problem]) -> tuple[int, float, float]:
    """Return how many answers are exact, tokens per forward and tokens per second."""
    assert generator.text is not None  # noqa: S101  (the tiny checkpoints have a tokenizer)
    exact = tokens = forwards = 0
    seconds = 0.0
    for problem in asked:
        prompt = generator.text.chat([{"role": "user", "content": problem.question}])
        (result,) = generator.run([generator.request(prompt)])
        exact += result.text == problem.answer
        tokens, forwards = tokens + len(result.tokens), forwards + result.forwards
        seconds += result.seconds
    return exact, tokens / forwards, tokens / seconds


def rows_of(
    bundle: Path, target: str, seed: int, count: int
) -> list[tuple[str | int | float, ...]]:
    """Measure one bundle: a row per task and one for all."""
    rows: list[tuple[str | int | float, ...]] = []
    total = 0
    with Generator.load(bundle, target) as generator:
        spec = generator.manifest.sampler
        given = (f"{name} {value}" for name, value in spec.parameters.items())
        sampler = ", ".join((spec.name, *given))
        about = (bundle.name, target, sampler, seed)
        for task in TASKS:
            drawn = problems(task, random.Random(f"{seed}/{task}"), held_out=True)  # noqa: S311
            exact, tpf, speed = measure(generator, list(islice(drawn, count)))
            total += exact
            rows.append((*about, task, count, exact, 100 * exact / count, tpf, speed))
    asked = count * len(TASKS)
    return [*rows, (*about, "all", asked, total, 100 * total / asked, "", "")]


def main() -> None:
    """Measure every bundle on every task and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("bundles", nargs="*", type=Path, default=BUNDLES)
    arguments.add_argument("--problems", type=int, default=250, help="problems of each task")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--target", default="onnxruntime-cpu")
    given = arguments.parse_args()
    rows = [
        row
        for bundle in given.bundles
        for row in rows_of(bundle, given.target, given.seed, given.problems)
    ]
    report(Table("accuracy", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
