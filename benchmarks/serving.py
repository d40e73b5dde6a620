"""Eight requests at once beside one at a time, on the same engine.

    python benchmarks/serving.py

An SDAR-shaped network of 130 M random weights in float32 (15 layers of 768, a vocabulary of
32,000), in blocks of 4, as SDAR has them, and of 32. Prompts of 8 to 64 arbitrary tokens, 48 new
ones, two steps a block of 4 and four a block of 32, a new request as soon as one has ended; the
same requests one at a time, in turns. Time outside the engine is the scheduler's own: who is next,
masks, samplers, text, blocks kept for later prompts.

How much eight at once can gain depends on the machine: a forward of a few positions waits for the
weights to come from memory, which eight rows share; one of many waits for arithmetic, which they do
not. The roofline's limit is what both rates say, eight floors of one row over the floor of eight;
beside it stands the same of forwards that were timed alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

from dlmc.bench import rates
from dlmc.bench.isolated import Probe, Use
from dlmc.bench.machine import settle
from dlmc.bench.roofline import Rates, Weights, floor, work
from dlmc.bench.run import head_is_tied
from dlmc.bench.served import Comparison, Load
from dlmc.bench.serving import ServeOptions, bench_serving
from dlmc_runtime import SamplerConfig, engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import Engine
from dlmc_runtime.errors import EngineError
from dlmc_runtime.manifest import Profile
from machine import Cell, Table, parser, report
from synthetic import SDAR_130M, build

AT_ONCE, REQUESTS, PROMPTS, ANSWER = 8, 16, (8, 64), 48
STEPS = {4: 2, 32: 4}
"""Steps of a block, by its length."""
CACHE, PREFILL = 192, 64
WIDTHS = (1, 2, 4, 8)
AIM = 2.5
CHOICES = ("onnxruntime-cpu", "openvino-cpu")
TURNS = 7
COLUMNS = (
    "block",
    "engine",
    "requests",
    "tokens per second, one at a time",
    "tokens per second, together",
    "faster",
    "lowest",
    "highest",
    "roofline's limit",
    "limit of forwards alone",
    "aim",
    "forwards",
    "rows in use %",
    "own ms per forward",
    "own time %",
    "same answers",
    "others %",
)


def sampler(block: int, own: SamplerConfig) -> SamplerConfig:
    """Return a sampler that makes everyone's work the same, whatever the weights say."""
    return replace(own, name="low_confidence_static", steps=STEPS[block], threshold=None)


def denoising(engine: Engine) -> Mapping[int, Profile]:
    """Return the shapes that denoise, by rows."""
    return {profile.batch: profile for profile in engine.profiles if profile.rows > 1}


def alone(engine: Engine) -> float:
    """Return the time of eight denoising forwards of one row over that of one of eight."""
    shapes = denoising(engine)
    probes = {size: Probe(engine, Use("denoise", shapes[size])) for size in (1, AT_ONCE)}
    times: dict[int, list[float]] = {size: [] for size in probes}
    for _ in range(TURNS + 1):  # the first one warms up
        for size, probe in probes.items():
            settle()
            times[size].append(probe.seconds())
    one, eight = (median(times[size][1:]) for size in probes)
    return AT_ONCE * one / eight


def limit(bundle: Bundle, engine: Engine, found: Rates) -> float:
    """Return the same of the floors."""
    weights = Weights.of(bundle.manifest.model, tied=head_is_tied(bundle))
    shapes = denoising(engine)
    one, eight = (
        floor(work(bundle.manifest.model, weights, shapes[size], "float32"), found).seconds
        for size in (1, AT_ONCE)
    )
    return AT_ONCE * one / eight


def measure(bundle: Bundle, block: int, name: str, rounds: int, found: Rates) -> tuple[Cell, ...]:
    """Time one engine alone and under load; return its row of the table."""
    engine = engines.load(bundle, name)
    try:
        most, by_itself = limit(bundle, engine, found), alone(engine)
    finally:
        engine.close()
    options = ServeOptions(
        requests=REQUESTS,
        load=Load(concurrency=AT_ONCE, rounds=rounds),
        lengths=PROMPTS,
        max_new_tokens=ANSWER,
        sampler=lambda own: sampler(block, own),
    )
    made = bench_serving(bundle.root, name, options).found
    return (block, name, *_cells(made, most, by_itself))


def _cells(made: Comparison, most: float, by_itself: float) -> tuple[Cell, ...]:
    shared = made.sharing
    if shared is None or made.alone.failed or made.together.failed:
        raise EngineError("a request failed", "run dlmc bench --serve to see which")
    return (
        made.together.requests,
        made.alone.tokens_per_second,
        made.together.tokens_per_second,
        made.faster.median,
        min(made.ratios),
        max(made.ratios),
        most,
        by_itself,
        min(AIM, most),
        shared.count,
        100 * shared.occupancy,
        1e3 * shared.own_seconds,
        100 * shared.own_share,
        made.same,
        100 * (made.noise.others or 0.0),
    )


@contextmanager
def built(block: int, names: list[str]) -> Iterator[Bundle]:
    """Export with blocks of this length and build engines."""
    shape = ("--batch", ",".join(map(str, WIDTHS)), "--cache", CACHE, "--prefill", PREFILL)
    with SDAR_130M.bundle("--block-length", str(block), "--no-tokenizer") as root:
        for name in names:
            build(root, name, *map(str, shape))
        yield Bundle.open(root)


def main() -> None:
    """Measure every block length and engine and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--block", type=int, choices=STEPS, help="only this one")
    arguments.add_argument(
        "--engine", action="append", choices=CHOICES, help=f"repeatable; {CHOICES[0]} without"
    )
    given = arguments.parse_args()
    names = given.engine or [CHOICES[0]]
    found = rates.measure("float32", "none", "cpu")
    if found is None:
        raise EngineError("this machine's rates cannot be measured", "install torch")
    rows: list[tuple[Cell, ...]] = []
    for block in STEPS if given.block is None else [given.block]:
        with built(block, names) as bundle:
            rows += [measure(bundle, block, name, given.rounds, found) for name in names]
    report(Table("serving", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
