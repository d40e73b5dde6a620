"""Whole generations of a LLaDA-shaped model: engines, and the reference's loop in torch.

    python benchmarks/end_to_end.py

About 300 M random weights, the released vocabulary of 126,464, a prompt of 128 tokens, 128 new
ones in 64 steps (blocks of 32, 16 steps each), no cache. Torch recomputes everything and hands all
logits to the sampler, as the references do, in two published forms: confidences in float64, and in
the precision of the logits. Each is compared with the engine of its precision, eight steps a turn.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from dlmc.bench.generation import Contestant, EngineContestant, Generation, Run, race
from dlmc.bench.machine import Watch
from dlmc.bench.spread import Spread
from dlmc.bench.torch_loop import Confidence, TorchContestant, TorchLoop
from dlmc_runtime import Generator, SamplerConfig
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.manifest import Precision
from machine import Cell, Table, parser, report
from synthetic import LLADA_300M, build

PROMPT, ANSWER, BLOCK, STEPS, TURN = 128, 128, 32, 16, 8
PAIRS: dict[Precision, str] = {"float32": "onnxruntime-cpu", "bfloat16": "openvino-cpu-bf16"}
COLUMNS = (
    "contestant",
    "precision",
    "sampler",
    "steps",
    "tokens",
    "tokens per forward",
    "tokens per second",
    "ms a step (median)",
    "ms (lowest turn)",
    "ms (highest turn)",
    "outside the network %",
    "engine faster by",
    "lowest",
    "highest",
    "others %",
)


@dataclass(frozen=True)
class Entry:
    """A contestant, and the name of the engine it is measured against."""

    contestant: Contestant
    precision: Precision
    engine: str


def entries(bundle: Bundle, forms: list[Confidence], stack: ExitStack) -> list[Entry]:
    """Load engines and torch loops."""
    found = []
    for precision, name in PAIRS.items():
        generator = stack.enter_context(Generator.of(bundle, name))
        found.append(Entry(EngineContestant(name, generator), precision, name))
        for form in forms:
            loop = TorchLoop.load(bundle, precision, form)
            label = f"torch {precision}, confidence {form}"
            found.append(Entry(TorchContestant(label, loop), precision, name))
    return found


def row(
    entry: Entry, sampler: SamplerConfig, made: Generation, engine: Generation
) -> tuple[Cell, ...]:
    """Describe one contestant; ratios are those of each turn."""
    steps = Spread.of(1e3 * seconds / TURN for seconds in made.turns)
    ratios = [a / b for a, b in zip(made.turns, engine.turns, strict=True)]
    spread = Spread.of(ratios)
    return (
        entry.contestant.name,
        entry.precision,
        f"{sampler.name}, temperature {sampler.temperature:g}",
        len(made.answer.forwards),
        len(made.answer.tokens),
        made.tokens_per_forward,
        made.useful_per_second,
        steps.median,
        steps.minimum,
        1e3 * max(made.turns) / TURN,
        100 * made.own_share,
        made.seconds / engine.seconds,
        spread.minimum,
        max(ratios),
    )


def main() -> None:
    """Race once and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--confidence", choices=("float64", "own"), help="only this form")
    given = arguments.parse_args()
    forms: list[Confidence] = [given.confidence] if given.confidence else ["float64", "own"]
    sampler = SamplerConfig(
        name="low_confidence", steps=STEPS, block_length=BLOCK, temperature=given.temperature
    )
    with LLADA_300M.bundle("--no-tokenizer") as root, ExitStack() as stack:
        for engine in PAIRS.values():
            build(root, engine, "--block", str(PROMPT + ANSWER), "--rows", str(BLOCK))
        bundle = Bundle.open(root)
        field = entries(bundle, forms, stack)
        first = field[0].contestant
        assert isinstance(first, EngineContestant)  # noqa: S101  (engines stand before torch)
        prompt = np.random.default_rng(0).integers(0, 120000, PROMPT).tolist()
        request = first.generator.request(
            prompt, max_new_tokens=ANSWER, sampler=sampler, ignore_eos=True
        )
        contestants = [entry.contestant for entry in field]
        for contestant in contestants:
            Run(contestant, request).advance(2)  # warms up
        with Watch() as watch:
            made = race(contestants, request, TURN)
    by_name = {one.name: result for one, result in zip(contestants, made, strict=True)}
    others = 100 * (watch.noise.others or 0.0)
    rows = [
        (*row(entry, sampler, by_name[entry.contestant.name], by_name[entry.engine]), others)
        for entry in field
    ]
    report(Table("end_to_end", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
