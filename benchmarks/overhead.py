"""Measure the runtime's own time per forward, and the bytes that leave the engine.

    python benchmarks/overhead.py

Own time is everything in a forward but the engine library's call: masks, uniforms, the sampler, the
bookkeeping, the text of what has become final and, at commit, the copy into the cache. Batch 1,
block 32, K = 4, both families.
"""

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from dlmc_runtime import Generator, SamplerConfig, decode
from dlmc_runtime.batch import Batch
from dlmc_runtime.engines.onnxruntime import OnnxRuntimeEngine
from dlmc_runtime.reader import Reader
from dlmc_runtime.row import Row
from machine import ROOT, Table, dlmc, parser, report

BLOCK = 32
ANSWER = 128
REPEATS = 8
COLUMNS = (
    "checkpoint",
    "forward",
    "count",
    "own µs (median)",
    "own µs (p90)",
    "engine µs (median)",
    "head bytes per position",
)
SHAPES = {
    "tiny-llada": ("--block", "192", "--rows", str(BLOCK)),
    "tiny-sdar": ("--block", str(BLOCK), "--cache", "192", "--prefill", "64"),
}


@dataclass
class TimedSession:
    """An ONNX Runtime session that notes how long it ran and what it returned."""

    session: Any
    seconds: float = 0.0
    head_bytes: int = 0
    positions: int = 0

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        """Run the session as `InferenceSession.run` does."""
        began = time.perf_counter()
        answers: list[Any] = self.session.run(names, feeds)
        self.seconds = time.perf_counter() - began
        head = [a for n, a in zip(names, answers, strict=True) if not n.startswith("present.")]
        self.head_bytes = sum(answer.nbytes for answer in head)
        self.positions = feeds["head_rows"].size
        return answers


@dataclass(frozen=True)
class Forward:
    """One forward: its kind, times in seconds, and bytes per position through the head."""

    kind: str
    total: float
    engine: float
    bytes_per_position: float


def forwards(generator: Generator, prompt: str) -> Iterator[Forward]:
    """Generate one answer and yield what each forward cost."""
    engine = generator.engine
    assert isinstance(engine, OnnxRuntimeEngine)  # noqa: S101  (the only engine with a session)
    timed = TimedSession(engine._session)
    engine._session = timed
    sampler = SamplerConfig(name=generator.sampler.name, block_length=BLOCK)
    request = generator.request(
        prompt, max_new_tokens=ANSWER, sampler=sampler, ignore_eos=True, keep_cache=True
    )
    batch = Batch.of(engine, [Row(request, generator.manifest)])
    reader = Reader(batch.rows[0], generator.text, 0)
    while batch.active:
        kind = batch.rows[0].task(batch.chunk).kind
        began = time.perf_counter()
        decode.step(batch)
        deque(reader.advance(0.0), maxlen=0)
        total = time.perf_counter() - began
        yield Forward(kind, total, timed.seconds, timed.head_bytes / timed.positions)
    engine._session = timed.session


def measure(name: str, folder: Path) -> list[tuple[str | float, ...]]:
    """Export, build and run one tiny checkpoint; return a row per kind of forward."""
    bundle = folder / name
    checkpoint = ROOT / "artifacts" / name
    dlmc("export", checkpoint, "-o", bundle, "--block-length", str(BLOCK), "--candidates", "4")
    dlmc("build", bundle, "--batch", "1", *SHAPES[name])
    seen: list[Forward] = []
    with Generator.load(bundle) as generator:
        for repeat in range(REPEATS + 1):
            answer = list(forwards(generator, "sort 3 1 2"))
            seen += answer if repeat else []  # the first one warms up
    rows: list[tuple[str | float, ...]] = []
    for kind in dict.fromkeys(forward.kind for forward in seen):
        own = [1e6 * (f.total - f.engine) for f in seen if f.kind == kind]
        engine = [1e6 * f.engine for f in seen if f.kind == kind]
        bytes_out = median(f.bytes_per_position for f in seen if f.kind == kind)
        row = (name, kind, len(own), median(own), quantiles(own, n=10)[-1], median(engine))
        rows.append((*row, bytes_out))
    return rows


def main() -> None:
    """Measure both families and print the table."""
    arguments = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in SHAPES for row in measure(name, Path(folder))]
    report(Table("overhead", COLUMNS, tuple(rows)), arguments.json)


if __name__ == "__main__":
    main()
