"""Measure what a JSON schema costs: forwards, time to compile, the runtime's time per forward.

    python benchmarks/structured.py artifacts/demo/tiny-llada artifacts/demo/tiny-sdar

A hundred held-out questions for facts as JSON are shared out among the tiny checkpoints, with a
schema and without one: how many answers validate, how many forwards they take, how long choosing
tokens takes in each. Then schemas are compiled for a vocabulary of 150,000 tokens of bytes.
"""

import json
import math
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from jsonschema import Draft202012Validator
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dlmc_runtime import Generator
from dlmc_runtime.constraints import feasible, guide, machine, schema
from dlmc_runtime.constraints.automaton import automaton
from dlmc_runtime.constraints.lexicon import Lexicon
from dlmc_runtime.events import Result
from dlmc_runtime.text import TextCodec
from machine import ROOT, Table, parser, report
from tasks import Problem, problems

BUNDLES = [ROOT / "artifacts" / "demo" / name for name in ("tiny-llada", "tiny-sdar", "tiny-gemma")]
REQUESTS = 100
COLUMNS = (
    "checkpoint",
    "requests",
    "valid, free",
    "valid, schema",
    "exact, free",
    "exact, schema",
    "forwards, free",
    "forwards, schema",
    "ratio",
    "choosing, ms a forward (median)",
    "(p90)",
    "compile, ms",
)
FACTS: dict[str, dict[str, Any]] = {
    "name": {"type": "string"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "city": {"type": "string"},
}
WORDS = 150_000
LARGE: dict[str, Any] = {
    "three facts": {"type": "object", "properties": FACTS, "required": list(FACTS)},
    "ten strings": {
        "type": "object",
        "properties": {f"field_{place}": {"type": "string"} for place in range(10)},
        "required": [f"field_{place}" for place in range(10)],
    },
    "a string of up to 200": {"type": "string", "maxLength": 200},
    "a list of objects of lists": {
        "items": {
            "type": "object",
            "properties": {"tags": {"items": {"type": "string"}}, "on": {"format": "date"}},
            "required": ["tags", "on"],
        },
        "type": "array",
    },
    "any object": {"type": "object"},
}


class Watch:
    """Notes how long choosing tokens takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        fill = feasible.fill

        def timed(*given: Any) -> Any:
            began = time.perf_counter()
            try:
                return fill(*given)
            finally:
                self.seconds.append(time.perf_counter() - began)

        patch.object(guide, "fill", timed).start()


def schema_of(problem: Problem) -> dict[str, Any]:
    """Return a schema of the facts that a question asks for."""
    names = list(json.loads(problem.answer))
    named = {name: FACTS[name] for name in names}
    return {
        "type": "object",
        "properties": named,
        "required": names,
        "additionalProperties": False,
    }


def validates(description: dict[str, Any], text: str) -> bool:
    """Return whether a text is JSON that validates."""
    with suppress(json.JSONDecodeError):
        return bool(Draft202012Validator(description).is_valid(json.loads(text)))
    return False


def measure(bundle: Path, count: int) -> tuple[str | int | float, ...]:
    """Ask one checkpoint with a schema and without."""
    asked = list(islice(problems("facts", random.Random(0), held_out=True), count))  # noqa: S311
    watch = Watch()
    with Generator.load(bundle) as generator:
        assert generator.text is not None  # noqa: S101  (the tiny checkpoints have a tokenizer)
        free: list[Result] = []
        kept: list[Result] = []
        compiling = []
        for problem in asked:
            prompt = generator.text.chat([{"role": "user", "content": problem.question}])
            began = time.perf_counter()
            constraint = generator.constraints.json_schema(schema_of(problem))
            compiling.append(time.perf_counter() - began)
            free.append(generator.generate(prompt))
            kept.append(generator.generate(prompt, constraint=constraint))
    pairs = [
        [
            sum(validates(schema_of(p), r.text) for p, r in zip(asked, results, strict=True)),
            sum(p.answer == r.text for p, r in zip(asked, results, strict=True)),
            sum(r.forwards for r in results),
        ]
        for results in (free, kept)
    ]
    (valid, exact, forwards), (valid_kept, exact_kept, forwards_kept) = pairs
    chosen = [1e3 * seconds for seconds in watch.seconds]
    made = [1e3 * seconds for seconds in compiling if seconds > 1e-3]  # not those remembered
    return (
        bundle.name,
        count,
        valid,
        valid_kept,
        exact,
        exact_kept,
        forwards,
        forwards_kept,
        forwards_kept / forwards,
        median(chosen),
        quantiles(chosen, n=10)[-1],
        median(made),
    )


def large_codec() -> TextCodec:
    """Return a byte-level tokenizer of 150,000 tokens: words, with a space before them or not."""
    rng = random.Random(0)  # noqa: S311
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [*"etaoinshrdlucmfwypvbgkjqxz" * 3, *alphabet]
    words = dict.fromkeys(alphabet)
    while len(words) < WORDS:
        size = min(1 + int(rng.expovariate(0.22)), 16)
        space = "Ġ" if rng.random() < 0.5 else ""
        words[space + "".join(rng.choices(letters, k=size))] = None
    tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return TextCodec(tokenizer, None)


def compiled() -> Sequence[tuple[str | int | float, ...]]:
    """Compile schemas for a large vocabulary."""
    began = time.perf_counter()
    lexicon = Lexicon.of(large_codec(), WORDS + 1, (WORDS,), ())
    rows: list[tuple[str | int | float, ...]] = [
        ("the vocabulary itself", "", "", "", time.perf_counter() - began)
    ]
    for name, description in LARGE.items():
        began = time.perf_counter()
        made = machine.build(schema.expression(description))
        between = time.perf_counter()
        found = automaton(made, lexicon)
        ended = time.perf_counter()
        rows.append((name, made.states, len(found.edges.source), between - began, ended - between))
    return rows


def main() -> None:
    """Measure the bundles and the compiler, and print both tables."""
    made = parser(__doc__)
    made.add_argument("bundles", nargs="*", type=Path, default=BUNDLES)
    made.add_argument("--requests", type=int, default=REQUESTS, help="of all bundles together")
    arguments = made.parse_args()
    each = math.ceil(arguments.requests / len(arguments.bundles))
    rows = [measure(bundle, each) for bundle in arguments.bundles]
    report(Table("structured", COLUMNS, tuple(rows)), arguments.json)
    columns = ("schema", "states", "edges", "automaton, s", "tokens, s")
    large = None if arguments.json is None else arguments.json.with_stem("structured_compile")
    report(Table("structured_compile", columns, tuple(compiled())), large)


if __name__ == "__main__":
    main()
