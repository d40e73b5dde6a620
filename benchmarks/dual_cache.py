"""What Fast-dLLM's caches save: engines without and with them, and the dual cache in torch.

    python benchmarks/dual_cache.py

A LLaDA-shaped network of 297 M random weights (17 layers of 1024, a vocabulary of 32,000), a prompt
of 128 tokens, 256 new ones in blocks of 32, 11 steps each: 2.9 tokens per forward. A fixed number
of steps makes everyone's work the same. Torch runs Fast-dLLM's loop in its fast form
(`dlmc.bench.torch_cache`), with confidences in float64 over the whole vocabulary; it has none for
int8 weights. Contestants take turns of one block. In float32 torch and the engine must make the
same tokens.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

from dlmc.bench.generation import Answer, Contestant, EngineContestant, Generation, Run
from dlmc.bench.machine import Watch, settle
from dlmc.bench.spread import Spread
from dlmc.bench.torch_loop import TorchContestant, TorchLoop
from dlmc_runtime import Generator, SamplerConfig
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.manifest import Precision
from dlmc_runtime.row import Request
from machine import Cell, Table, parser, report
from synthetic import LLADA_SMALL_VOCABULARY, build

PROMPT, ANSWER, BLOCK, STEPS = 128, 256, 32, 11
ENGINES = {
    "float32": "onnxruntime-cpu",
    "int8 weights": "onnxruntime-cpu-int8",
    "bfloat16": "openvino-cpu-bf16",
}
TORCH: dict[str, Precision] = {"float32": "float32", "bfloat16": "bfloat16"}
"""Precisions that torch's loop has as well."""
COLUMNS = (
    "contestant",
    "precision",
    "cache",
    "forwards",
    "tokens per forward",
    "seconds",
    "tokens per second",
    "ms the first of a block (median)",
    "ms another (median)",
    "outside the network %",
    "dual engine faster by",
    "lowest",
    "highest",
    "others %",
)


@dataclass(frozen=True)
class Entry:
    """A contestant, its request, and the precision in which it is compared."""

    contestant: Contestant
    precision: str
    request: Request

    @property
    def cache(self) -> str:
        """The cache it is asked for."""
        return self.request.sampler.cache or "none"


def entries(bundle: Bundle, precision: str, stack: ExitStack) -> list[Entry]:
    """Load an engine and torch's loop; the engine with the dual cache comes first."""
    generator = stack.enter_context(Generator.of(bundle, ENGINES[precision]))
    size = generator.manifest.model.vocab_size - 1000
    prompt = np.random.default_rng(0).integers(0, size, PROMPT).tolist()

    def request(cache: str) -> Request:
        sampler = SamplerConfig(steps=STEPS, block_length=BLOCK, cache=cache)
        return generator.request(prompt, max_new_tokens=ANSWER, sampler=sampler, ignore_eos=True)

    # Contestants keep what they measured until they begin again, so each has its own.
    found = [
        Entry(EngineContestant(ENGINES[precision], generator), precision, request(cache))
        for cache in ("dual", "prefix", "none")
    ]
    if precision not in TORCH:
        return found
    loop = TorchContestant(f"torch {precision}", TorchLoop.load(bundle, TORCH[precision]))
    return [*found, Entry(loop, precision, request("dual"))]


def race(field: list[Entry]) -> list[Generation]:
    """Let everyone answer, a block a turn, after a few forwards that do not count."""
    for entry in field:
        Run(entry.contestant, entry.request).advance(3)
    runs = [Run(entry.contestant, entry.request) for entry in field]
    while any(run.answer is None for run in runs):
        for run in runs:
            if run.answer is None:
                settle()
                run.advance(STEPS)
    return [run.result for run in runs]


def disagreement(ours: Answer, theirs: Answer) -> str | None:
    """Return what differs between two answers that must be the same."""
    if len(ours.forwards) != len(theirs.forwards):
        return f"{len(ours.forwards)} and {len(theirs.forwards)} forwards"
    pairs = enumerate(zip(ours.tokens, theirs.tokens, strict=True))
    differing = [place for place, (our, their) in pairs if our != their]
    if differing:
        return f"{len(differing)} of {len(ours.tokens)} tokens, the first at {differing[0]}"
    return None


def check(field: list[Entry], made: list[Generation]) -> None:
    """End the program where steps differ, or tokens of the two float32 loops do."""
    counts = {len(one.answer.forwards) for one in made}
    if len(counts) > 1:
        sys.exit(f"not everyone made as many forwards: {sorted(counts)}")
    dual = [
        one.answer
        for entry, one in zip(field, made, strict=True)
        if (entry.precision, entry.cache) == ("float32", "dual")
    ]
    problem = disagreement(*dual)
    if problem:
        sys.exit(f"the engine and torch differ with the dual cache in float32: {problem}")


def row(entry: Entry, made: Generation, dual: Generation) -> tuple[Cell, ...]:
    """Describe one contestant; ratios are those of each turn, a block."""
    forwards = made.answer.forwards
    first = [1e3 * one.seconds for one in forwards[::STEPS]]
    others = [1e3 * one.seconds for place, one in enumerate(forwards) if place % STEPS]
    ratios = [a / b for a, b in zip(made.turns, dual.turns, strict=True)]
    return (
        entry.contestant.name,
        entry.precision,
        entry.cache,
        len(forwards),
        made.tokens_per_forward,
        made.seconds,
        made.useful_per_second,
        median(first),
        median(others),
        100 * made.own_share,
        made.seconds / dual.seconds,
        Spread.of(ratios).minimum,
        max(ratios),
    )


def main() -> None:
    """Race once and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--precision", choices=tuple(ENGINES), help="only this one")
    given = arguments.parse_args()
    precisions = [given.precision] if given.precision else list(ENGINES)
    length = str(PROMPT + ANSWER)
    with LLADA_SMALL_VOCABULARY.bundle("--no-tokenizer") as root, ExitStack() as stack:
        for precision in precisions:
            shape = ("--block", length, "--cache", length, "--rows", str(BLOCK))
            build(root, ENGINES[precision], *shape)
        bundle = Bundle.open(root)
        field = [entry for name in precisions for entry in entries(bundle, name, stack)]
        with Watch() as watch:
            made = race(field)
    if "float32" in precisions:
        check(field, made)
    duals = {entry.precision: one for entry, one in reversed(list(zip(field, made, strict=True)))}
    busy = 100 * (watch.noise.others or 0.0)
    rows = [
        (*row(entry, one, duals[entry.precision]), busy)
        for entry, one in zip(field, made, strict=True)
    ]
    report(Table("dual_cache", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
