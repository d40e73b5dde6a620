"""Eight requests at once beside one at a time, on the same engine.

    python benchmarks/serving.py

An SDAR-shaped network of 130 M random weights in float32 (15 layers of 768, a vocabulary of
32,000), in blocks of 4, as SDAR has them, and of 32. Prompts of 8 to 64 arbitrary tokens, 48 new
ones and 192, two steps a block of 4 and four a block of 32, a new request as soon as one has ended;
the same requests one at a time, in turns. Time outside the engine is the scheduler's own: who is
next, masks, samplers, text, blocks kept for later prompts.

How much eight at once can gain depends on the machine: a forward of a few positions waits for the
weights to come from memory, which eight rows share; one of many, as a prompt's, waits for
arithmetic, which they do not. The roofline's limit is what both rates say of all forwards of an
answer, one of a prompt among them: its floor by itself over its share of the floors of eight;
beside it stands the same of forwards that were timed alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from statistics import median

from dlmc.bench import rates
from dlmc.bench.isolated import Probe, Use, uses
from dlmc.bench.machine import settle
from dlmc.bench.roofline import Rates, Weights, floor, work
from dlmc.bench.run import head_is_tied
from dlmc.bench.served import Comparison, Load
from dlmc.bench.serving import ServeOptions, bench_serving
from dlmc.bench.timing import Kind
from dlmc_runtime import SamplerConfig, engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import Engine
from dlmc_runtime.errors import EngineError
from machine import Cell, Table, parser, report
from synthetic import SDAR_130M, build

AT_ONCE, REQUESTS, PROMPTS, ANSWERS = 8, 16, (8, 64), (48, 192)
STEPS = {4: 2, 32: 4}
"""Steps of a block, by its length."""
CACHE, PREFILL = 256, 64
WIDTHS = (1, 2, 4, 8)
AIM = 2.5
CHOICES = ("onnxruntime-cpu", "openvino-cpu")
TURNS = 7
COLUMNS = (
    "block",
    "new tokens",
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


def forwards(block: int, answer: int) -> Mapping[Kind, int]:
    """Return what an answer takes, by kind: a chunk of a prompt, and steps and commits of blocks.

    Nothing follows the last block, so that it is not committed.
    """
    blocks = ceil(answer / block)
    return {"prefill": 1, "denoise": STEPS[block] * blocks, "commit": blocks - 1}


def gain(needed: Mapping[Kind, int], seconds: Mapping[Use, float]) -> float:
    """Return an answer's time by itself over its share of the time of eight."""
    one, eight = (
        sum(needed[use.kind] * time for use, time in seconds.items() if use.profile.batch == rows)
        for rows in (1, AT_ONCE)
    )
    return AT_ONCE * one / eight


def compared(engine: Engine) -> list[Use]:
    """Return what an engine does for one row and for eight; `gain` reads nothing in between."""
    found = uses(engine.manifest, engine.profiles)
    return [use for use in found if use.profile.batch in (1, AT_ONCE)]


def alone(engine: Engine) -> Mapping[Use, float]:
    """Return the time of every forward of one row and of eight, each timed by itself."""
    probes = {use: Probe(engine, use) for use in compared(engine)}
    times: dict[Use, list[float]] = {use: [] for use in probes}
    for _ in range(TURNS + 1):  # the first one warms up
        for use, probe in probes.items():
            settle()
            times[use].append(probe.seconds())
    return {use: median(found[1:]) for use, found in times.items()}


def floors(bundle: Bundle, engine: Engine, found: Rates) -> Mapping[Use, float]:
    """Return the floors of the same."""
    model = bundle.manifest.model
    weights = Weights.of(model, tied=head_is_tied(bundle))
    return {
        use: floor(work(model, weights, use.profile, "float32"), found).seconds
        for use in compared(engine)
    }


def measure(
    bundle: Bundle, block: int, name: str, answers: Sequence[int], rounds: int, found: Rates
) -> Iterator[tuple[Cell, ...]]:
    """Time one engine alone and under load; yield a row of the table for each length of answers."""
    engine = engines.load(bundle, name)
    try:
        least, measured = floors(bundle, engine, found), alone(engine)
    finally:
        engine.close()
    for answer in answers:
        options = ServeOptions(
            requests=REQUESTS,
            load=Load(concurrency=AT_ONCE, rounds=rounds),
            lengths=PROMPTS,
            max_new_tokens=answer,
            sampler=lambda own: sampler(block, own),
        )
        made = bench_serving(bundle.root, name, options).found
        needed = forwards(block, answer)
        limits = gain(needed, least), gain(needed, measured)
        yield (block, answer, name, *_cells(made, *limits))


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
    arguments.add_argument("--answer", type=int, choices=ANSWERS, help="only this one")
    arguments.add_argument(
        "--engine", action="append", choices=CHOICES, help=f"repeatable; {CHOICES[0]} without"
    )
    given = arguments.parse_args()
    names = given.engine or [CHOICES[0]]
    found = rates.measure("float32", "none", "cpu")
    if found is None:
        raise EngineError("this machine's rates cannot be measured", "install torch")
    answers = ANSWERS if given.answer is None else [given.answer]
    rows: list[tuple[Cell, ...]] = []
    for block in STEPS if given.block is None else [given.block]:
        with built(block, names) as bundle:
            for name in names:
                rows += measure(bundle, block, name, answers, given.rounds, found)
    report(Table("serving", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
