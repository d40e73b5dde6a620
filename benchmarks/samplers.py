"""Every sampler on the tiny checkpoints: how often it is right, and in how many forwards.

    PYTHONPATH=recipes/tiny python benchmarks/samplers.py --markdown table.md --plot picture.svg

The same held-out problems, a quarter of each task, for every sampler that goes with a checkpoint,
at a few settings of its pace. What sees the whole sequence is asked without a cache, and at the
first setting of each sampler with the approximate ones too. Temperature is 0; samplers that draw
positions get the seed. Checkpoints of 1.3 M weights say how samplers compare where confidence is
well founded, not what a large one answers.
"""

import random
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path

from dlmc_runtime import Generator, SamplerConfig, legal
from machine import ROOT, Table, dlmc, parser, report
from sampler_table import markdown, picture
from tasks import TASKS, Problem, problems

TARGET = "onnxruntime-cpu"
CHECKPOINTS: dict[str, tuple[str, ...]] = {
    "tiny-llada": ("--block", "128", "--cache", "128", "--rows", "32"),
    "tiny-sdar": ("--cache", "192", "--prefill", "64"),
}
Options = dict[str, int | float]

_SURE: tuple[Options, ...] = ({"threshold": 0.9}, {"threshold": 0.7})
SETTINGS: dict[str, tuple[Options, ...]] = {
    "low_confidence": (*_SURE, {"factor": 1.0}),
    "maskgit_plus": (*_SURE, {"factor": 1.0}),
    "confidence_threshold": ({"steps": 4, "threshold": 0.9}, {"steps": 4, "threshold": 0.7}),
    "low_confidence_dynamic": _SURE,
    "entropy_bounded": ({"gamma": 0.1}, {"gamma": 0.35}),
    "klass": ({}, {"threshold": 0.7}),
    "credit": _SURE,
    "hierarchy": ({}, {"threshold": 0.7, "low_threshold": 0.2}),
    "dus": ({}, {"threshold": 0.3}),
    "wino": ({}, {"threshold": 0.8}),
    "fixed": ({"most": 1}, {"most": 2}),
    "confidence_threshold_ref": ({}, {"threshold": 0.7}),
    "confidence_threshold_bound": ({}, {"threshold": 0.7}),
    "cumulative_error": ({}, {"threshold": 0.5}),
    "token_editing": ({}, {"threshold": 0.7, "edit_threshold": 0.5}),
    "levenshtein": ({}, {"threshold": 0.7, "edit_threshold": 0.5}),
}
"""Settings of samplers that have more than steps to set their pace."""
_ALSO_STEPS = ("low_confidence",)

COLUMNS = (
    "checkpoint",
    "sampler",
    "options",
    "cache",
    "seed",
    "problems",
    "exact",
    "exact %",
    "forwards an answer",
    "tokens per forward",
)


@dataclass(frozen=True)
class Setting:
    """A sampler, what its pace is, and a cache."""

    config: SamplerConfig

    @property
    def options(self) -> str:
        """What differs from the sampler's defaults."""
        given = asdict(self.config)
        named = [
            f"{field.name} {given[field.name]:g}"
            for field in fields(SamplerConfig)
            if field.name not in ("name", "cache", "block_length")
            and given[field.name] != field.default
        ]
        return ", ".join(named) or "its own"

    @property
    def cache(self) -> str:
        """The cache by name."""
        return self.config.cache or "exact"


def settings(generator: Generator) -> Iterator[Setting]:
    """Yield every setting of every sampler that goes with the generator's model."""
    attention = generator.manifest.attention
    whole = attention.regime == "full"
    length = generator.sampler.block_length or attention.block_length
    paces: tuple[Options, ...] = tuple({"steps": length // n} for n in (2, 1, 4))
    for name in legal.samplers_for(attention.regime, generator.manifest.tokens):
        own = SETTINGS.get(name, paces)
        for place, options in enumerate((*own, *paces) if name in _ALSO_STEPS else own):
            config = SamplerConfig(name=name, block_length=length).updated(**options)
            yield Setting(config.updated(cache="none" if whole else None))
            if whole and not place and name != "wino":
                for cache in ("prefix", "dual"):
                    yield Setting(config.updated(cache=cache))


def asked(count: int, seed: int) -> list[Problem]:
    """Draw ``count`` held-out problems of each task."""
    return [
        problem
        for task in TASKS
        for problem in islice(
            problems(task, random.Random(f"{seed}/{task}"), held_out=True),  # noqa: S311
            count,
        )
    ]


def measure(
    generator: Generator, setting: Setting, drawn: Sequence[Problem], seed: int
) -> tuple[str | int | float, ...]:
    """Ask everything and return a row, from the sampler's name on."""
    assert generator.text is not None  # noqa: S101  (the tiny checkpoints have a tokenizer)
    exact = tokens = forwards = 0
    for problem in drawn:
        prompt = generator.text.chat([{"role": "user", "content": problem.question}])
        result = generator.generate(prompt, sampler=setting.config, seed=seed)
        exact += result.text == problem.answer
        tokens, forwards = tokens + len(result.tokens), forwards + result.forwards
    count = len(drawn)
    about = (setting.config.name, setting.options, setting.cache, seed, count)
    return (*about, exact, 100 * exact / count, forwards / count, tokens / forwards)


def rows_of(
    checkpoint: str, folder: Path, drawn: Sequence[Problem], seed: int, only: Iterable[str]
) -> Iterator[tuple[str | int | float, ...]]:
    """Export and build one checkpoint and yield a row a setting."""
    root = folder / checkpoint
    dlmc("export", ROOT / "artifacts" / checkpoint, "-o", root, "--recipe", f"tiny/{checkpoint}")
    dlmc("build", root, "--target", TARGET, *CHECKPOINTS[checkpoint], "--batch", "1")
    with Generator.load(root, TARGET) as generator:
        for setting in settings(generator):
            if setting.config.name in only or not only:
                found = measure(generator, setting, drawn, seed)
                print(checkpoint, *found[:3], f"{found[6]:.1f} %", file=sys.stderr)
                yield (checkpoint, *found)


def main() -> None:
    """Measure both checkpoints, and write the table and the picture that are asked for."""
    arguments = parser(__doc__)
    arguments.add_argument("--problems", type=int, default=16, help="problems of each task")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--sampler", action="append", default=[], help="only this; repeatable")
    arguments.add_argument("--markdown", type=Path, help="also write the table here, as a page")
    arguments.add_argument("--plot", type=Path, help="also draw it here, .svg or .png")
    given = arguments.parse_args()
    drawn = asked(given.problems, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        rows = tuple(
            row
            for name in CHECKPOINTS
            for row in rows_of(name, Path(folder), drawn, given.seed, given.sampler)
        )
    table = Table("samplers", COLUMNS, rows)
    report(table, given.json)
    if given.markdown is not None:
        given.markdown.write_text(markdown(table), encoding="utf-8")
    if given.plot is not None:
        picture(table, given.plot)


if __name__ == "__main__":
    main()
