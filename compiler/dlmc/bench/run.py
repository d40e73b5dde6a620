"""`dlmc bench`: engines of a bundle, timed side by side."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dlmc import families
from dlmc.bench import isolated, memory, rates, tasks
from dlmc.bench.generation import Contestant, EngineContestant, Generation, Run, race
from dlmc.bench.isolated import Use
from dlmc.bench.machine import Watch, this_machine
from dlmc.bench.memory import Footprint
from dlmc.bench.report import Contender, Report, Speed, Workload, phases
from dlmc.bench.roofline import Floor, Rates, Weights, floor, work
from dlmc.bench.tasks import Task
from dlmc.checkpoint.bounded_json import read_json
from dlmc_runtime import preflight
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.errors import BundleError, UsageError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Precision
from dlmc_runtime.options import Prompt
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig

QUESTION = "What is 12 + 7?"
_ARBITRARY = 32  # ids of a prompt for a bundle without a tokenizer
_WARM_UP = 3  # denoising forwards
_ALONE_SECONDS = 3.0  # for each use of a profile
_ALONE_REPEATS = 30

Advance = Callable[[str], object]


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        targets: engines by target or full name; none means all that are built and run here.
        prompt: what to answer; None for a short question, or for ``prompt_tokens``.
        prompt_tokens: ask with so many arbitrary ids instead, and ignore stop ids.
        max_new_tokens: most tokens of an answer; None for the bundle's own.
        sampler: makes the sampler out of the bundle's own.
        seed: of every answer.
        ignore_eos: answer in full length whatever the model says.
        repeats: measured generations of each contender.
        torch: also measure the reference's loop in torch, in every precision of the engines.
        tasks: a file of questions; None for the bundle's own, where it has one.
    """

    targets: tuple[str, ...] = ()
    prompt: str | None = None
    prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    sampler: Callable[[SamplerConfig], SamplerConfig] = replace
    seed: int = 0
    ignore_eos: bool = False
    repeats: int = 5
    torch: bool = False
    tasks: Path | None = None


def bench_bundle(
    root: Path, options: BenchOptions | None = None, advance: Advance = lambda _: None
) -> Report:
    """Measure engines of a bundle, one beside the other.

    All of them, and torch's weights, are in memory at once, so that they can take turns.

    Args:
        root: the bundle.
        options: what to measure.
        advance: called with a few words before each part of the work.

    Raises:
        UsageError: a target is unknown, a tasks file unreadable, or torch has no such loop.
        RequestError: the request does not fit the engines.
        BundleError: the bundle or an engine's record does not load, or no engine was built.
        EngineError: an engine does not load or fails.
    """
    options = options or BenchOptions()
    asked = _tasks(root, options)
    bundle = Bundle.open(root, weights=options.torch)
    bench = _Bench(bundle, records(bundle, options.targets), options, advance)
    with Watch() as watch:
        footprints = bench.footprints()
        rates_of = bench.rates()
        with ExitStack() as stack:
            bench.load(stack)
            baselines = bench.baselines() if options.torch else {}
            generations = bench.race(baselines.values())
            contenders = [
                replace(
                    bench.contender(name, rates_of[name], generations[name], asked),
                    footprint=footprints[name],
                    faster=_faster(generations, name, baselines.get(record.precision)),
                )
                for name, record in bench.records.items()
            ]
            contenders += [
                bench.baseline(precision, generations[contestant.name])
                for precision, contestant in baselines.items()
            ]
            workload = bench.workload()
    return Report(root.name, this_machine(), watch.noise, workload, tuple(contenders))


def _tasks(root: Path, options: BenchOptions) -> list[Task]:
    """Read the tasks that are asked for, or those that the bundle has."""
    own = root / tasks.IN_BUNDLE
    path = options.tasks or (own if own.is_file() else None)
    return [] if path is None else tasks.read_tasks(path)


def records(bundle: Bundle, targets: Sequence[str]) -> dict[str, EngineRecord]:
    """Return the records of the engines to measure, by full name.

    Raises:
        UsageError: a target is unknown.
        BundleError: a named one was not built, or none that runs here.
        EngineError: a named one does not run here.
    """
    built = bundle.engine_names()
    for name in targets:
        if name not in ENGINES and name not in built:
            raise UsageError(f"no target is called {name!r}", f"choose one of {', '.join(ENGINES)}")
    if targets:
        named = {bundle.engine_name(name): bundle.engine(name) for name in targets}
        for record in named.values():
            preflight.check(record)
        return named
    known = {name: bundle.engine(name) for name in built}
    found = {
        name: record
        for name, record in known.items()
        if record.target in ENGINES and preflight.obstacle(record) is None
    }
    if not found:
        raise BundleError(
            f"{bundle.root} holds no engine that runs here (built: {', '.join(built) or 'none'})",
            f"run dlmc build {bundle.root}; dlmc inspect says what the others need",
        )
    return found


def _faster(
    generations: dict[str, list[Generation]], name: str, baseline: Contestant | None
) -> float | None:
    """Return the tokens a second of an engine over those of torch, by median."""
    if baseline is None:
        return None
    ours, theirs = Speed.of(generations[name]), Speed.of(generations[baseline.name])
    return ours.useful_per_second.median / theirs.useful_per_second.median


class _Bench:
    """The parts of one benchmark, in the order in which they are called."""

    def __init__(
        self,
        bundle: Bundle,
        records: dict[str, EngineRecord],
        options: BenchOptions,
        advance: Advance,
    ) -> None:
        self.bundle, self.records, self.options = bundle, records, options
        self.advance = advance
        self.weights = Weights.of(bundle.manifest.model, tied=head_is_tied(bundle))
        self.generators: dict[str, Generator] = {}

    def footprints(self) -> dict[str, Footprint | None]:
        """Measure every engine's memory, before another engine takes any."""
        found = {}
        for name in self.records:
            self.advance(f"memory of {name}")
            found[name] = memory.measure(self.bundle.root, name)
        return found

    def rates(self) -> dict[str, Rates | None]:
        """Measure what the machine could do, once for each precision."""
        kinds = {
            name: (record.precision, record.quantization, record.device)
            for name, record in self.records.items()
        }
        found = {}
        for kind in dict.fromkeys(kinds.values()):
            self.advance(f"the machine in {kind[0]}")
            found[kind] = rates.measure(*kind)
        return {name: found[kind] for name, kind in kinds.items()}

    def load(self, stack: ExitStack) -> None:
        """Load every engine and make the request of the first one."""
        for name in self.records:
            self.advance(f"loading {name}")
            self.generators[name] = stack.enter_context(Generator.of(self.bundle, name))
        self.request = _request(next(iter(self.generators.values())), self.options)

    def baselines(self) -> dict[Precision, Contestant]:
        """Load the reference's loop in every precision that an engine has."""
        from dlmc.bench.torch_loop import TorchContestant, TorchLoop, check

        check(self.bundle.manifest, self.request.sampler)
        found: dict[Precision, Contestant] = {}
        for precision in dict.fromkeys(record.precision for record in self.records.values()):
            self.advance(f"loading torch in {precision}")
            loop = TorchLoop.load(self.bundle, precision)
            found[precision] = TorchContestant(f"torch {precision}", loop)
        return found

    def race(self, others: Iterable[Contestant]) -> dict[str, list[Generation]]:
        """Let engines and others answer in turns, after a few forwards that do not count."""
        contestants = [EngineContestant(*item) for item in self.generators.items()]
        everyone: list[Contestant] = [*contestants, *others]
        self.advance("warming up")
        for one in everyone:
            Run(one, self.request).advance(_WARM_UP)
        found: dict[str, list[Generation]] = {one.name: [] for one in everyone}
        for repeat in range(self.options.repeats):
            self.advance(f"answer {repeat + 1} of {self.options.repeats}")
            for one, made in zip(everyone, race(everyone, self.request), strict=True):
                found[one.name].append(made)
        return found

    def contender(
        self,
        name: str,
        limits: Rates | None,
        generations: Sequence[Generation],
        asked: Sequence[Task],
    ) -> Contender:
        """Time an engine's profiles one by one, ask it the tasks, and say what was found."""
        record, generator = self.records[name], self.generators[name]
        self.advance(f"profiles of {name}")
        alone = [
            (use, isolated.measure(generator.engine, use, _ALONE_REPEATS, _ALONE_SECONDS))
            for use in isolated.uses(self.bundle.manifest, record.profiles)
        ]
        floors = [None if limits is None else self.floor(record, use, limits) for use, _ in alone]
        self.advance(f"tasks of {name}")
        scores = tasks.score(
            generator,
            asked,
            self.request.sampler,
            max_new_tokens=self.options.max_new_tokens,
            seed=self.options.seed,
        )
        return Contender(
            name=name,
            precision=record.precision,
            quantization=record.quantization,
            weights=round(self.weights.bytes(record.precision, record.quantization)),
            rates=limits,
            speed=Speed.of(generations),
            phases=phases(alone, generations, floors),
            scores=tuple(scores),
        )

    def baseline(self, precision: Precision, generations: Sequence[Generation]) -> Contender:
        """Say what was found about torch."""
        return Contender(
            name=f"torch {precision}",
            precision=precision,
            quantization="none",
            weights=round(self.weights.bytes(precision)),
            rates=None,
            speed=Speed.of(generations),
            phases=phases([], generations, []),
        )

    def floor(self, record: EngineRecord, use: Use, limits: Rates) -> Floor:
        """Return the least seconds of a forward."""
        needed = work(
            self.bundle.manifest.model,
            self.weights,
            use.profile,
            record.precision,
            record.quantization,
            record.cache_dtype,
        )
        return floor(needed, limits)

    def workload(self) -> Workload:
        """Say what was generated."""
        length = self.bundle.manifest.attention.block_length
        return Workload.of(self.request, length, self.options.repeats)


def head_is_tied(bundle: Bundle) -> bool:
    """Return whether the head uses the embedding's matrix."""
    manifest = bundle.manifest
    config = read_json(bundle.root / manifest.config)
    stated = families.Overrides(
        mask_id=manifest.tokens.mask, block_length=manifest.attention.block_length
    )
    family = families.detect(config, manifest.family)
    return family.read(config, {}, stated).denoiser.tie_word_embeddings


def _request(generator: Generator, options: BenchOptions) -> Request:
    """Return what every contender answers."""
    manifest = generator.manifest
    count = options.prompt_tokens
    prompt: Prompt
    if options.prompt is not None or (count is None and generator.text is not None):
        prompt = tasks.rendered(generator.text, options.prompt or QUESTION)
    else:
        allowed = np.setdiff1d(np.arange(manifest.model.vocab_size), manifest.tokens.suppressed)
        draws = np.random.default_rng(options.seed)
        prompt = draws.choice(allowed, _ARBITRARY if count is None else count).tolist()
    return generator.request(
        prompt,
        max_new_tokens=options.max_new_tokens,
        sampler=options.sampler(generator.sampler),
        seed=options.seed,
        ignore_eos=options.ignore_eos or not isinstance(prompt, str),
    )
