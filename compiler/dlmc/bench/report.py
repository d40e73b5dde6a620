"""What a benchmark found, for tables, JSON and pictures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dlmc.bench.generation import Generation
from dlmc.bench.isolated import Use
from dlmc.bench.machine import Machine, Noise
from dlmc.bench.memory import Footprint
from dlmc.bench.roofline import Floor, Rates
from dlmc.bench.spread import NOISY, Spread
from dlmc.bench.tasks import Score
from dlmc.bench.timing import KINDS, Kind
from dlmc_runtime.manifest import Profile
from dlmc_runtime.row import Request


@dataclass(frozen=True)
class Speed:
    """Repeated generations of one request by one contestant.

    Attributes:
        tokens: tokens of the answer, up to and without a stop id.
        forwards: forwards of the answer, by kind.
        tokens_per_forward: the former over all of the latter.
        seconds: of one answer.
        useful_per_second: tokens of the answer a second.
        computed_per_second: positions through the network a second, padding included.
        first_block: seconds until the answer's first block was final.
        own_share: share of the time outside the network.
    """

    tokens: int
    forwards: dict[Kind, int]
    tokens_per_forward: float
    seconds: Spread
    useful_per_second: Spread
    computed_per_second: Spread
    first_block: Spread
    own_share: Spread

    @classmethod
    def of(cls, generations: Sequence[Generation]) -> "Speed":
        """Summarize at least one generation; all of one request are alike but for the times."""
        first = generations[0]
        kinds = [forward.kind for forward in first.answer.forwards]
        return cls(
            tokens=len(first.answer.tokens),
            forwards={kind: kinds.count(kind) for kind in KINDS if kind in kinds},
            tokens_per_forward=first.tokens_per_forward,
            seconds=Spread.of(one.seconds for one in generations),
            useful_per_second=Spread.of(one.useful_per_second for one in generations),
            computed_per_second=Spread.of(one.computed_per_second for one in generations),
            first_block=Spread.of(one.first_block for one in generations),
            own_share=Spread.of(one.own_share for one in generations),
        )


@dataclass(frozen=True)
class Phase:
    """Forwards of one kind in one profile; times in seconds.

    Attributes:
        kind: what for.
        profile: the shape; None for torch, which has none.
        alone: timed one after the other, every position in use.
        in_loop: as they came in the generations; None where the request needed none.
        floor: the least they can take; None where the rates were not measured.
    """

    kind: Kind
    profile: Profile | None
    alone: Spread | None
    in_loop: Spread | None
    floor: Floor | None

    @property
    def ratio(self) -> float | None:
        """Measured over floor."""
        if self.floor is None or self.alone is None:
            return None
        return self.alone.median / self.floor.seconds


def phases(
    alone: Sequence[tuple[Use, list[float]]],
    generations: Sequence[Generation],
    floors: Sequence[Floor | None],
) -> tuple[Phase, ...]:
    """Join what was timed alone with what was timed in the loop, by kind and profile."""
    loop: dict[tuple[Kind, Profile | None], list[float]] = {}
    for generation in generations:
        for forward in generation.answer.forwards:
            loop.setdefault((forward.kind, forward.profile), []).append(forward.seconds)
    found = []
    for (use, times), floor in zip(alone, floors, strict=True):
        seen = loop.pop((use.kind, use.profile), [])
        in_loop = Spread.of(seen) if seen else None
        found.append(Phase(use.kind, use.profile, Spread.of(times), in_loop, floor))
    found += [Phase(*key, None, Spread.of(times), None) for key, times in loop.items()]
    return tuple(found)


@dataclass(frozen=True)
class Contender:
    """Everything about one engine, or about torch.

    Attributes:
        name: of the engine, or ``torch`` and its precision.
        precision: what it computes in.
        quantization: of its layers' weights.
        weights: bytes its weights take in that precision.
        rates: what the machine could do; None where they were not measured.
        speed: of whole generations.
        phases: of single forwards.
        scores: accuracy, a row a group of tasks.
        footprint: its memory; None where it was not measured.
        faster: its tokens a second over those of torch in the same precision, by median.
    """

    name: str
    precision: str
    quantization: str
    weights: int
    rates: Rates | None
    speed: Speed
    phases: tuple[Phase, ...]
    scores: tuple[Score, ...] = ()
    footprint: Footprint | None = None
    faster: float | None = None


@dataclass(frozen=True)
class Workload:
    """What was generated; steps and sampler stand beside every speed.

    Attributes:
        prompt_tokens: length of the prompt.
        max_new_tokens: most tokens of the answer.
        ignore_eos: whether stop ids were ignored, so that every answer has its full length.
        block_length: positions denoised together.
        steps: forwards a block; None where confidence decides.
        sampler: the sampler's configuration, every field.
        seed: of every answer.
        repeats: measured generations of each contender, after a warm-up.
    """

    prompt_tokens: int
    max_new_tokens: int
    ignore_eos: bool
    block_length: int
    steps: int | None
    sampler: dict[str, Any]
    seed: int
    repeats: int

    @classmethod
    def of(cls, request: Request, block_length: int, repeats: int) -> "Workload":
        """Describe a request to a model that denoises ``block_length`` positions together."""
        sampler = request.sampler
        length = sampler.block_length or block_length
        sure = sampler.threshold is not None or sampler.factor is not None
        return cls(
            prompt_tokens=len(request.prompt),
            max_new_tokens=request.max_new_tokens,
            ignore_eos=not request.stop.ids,
            block_length=length,
            steps=sampler.steps or (None if sure else length),
            sampler=asdict(sampler),
            seed=request.seed,
            repeats=repeats,
        )

    @property
    def pace(self) -> str:
        """Sampler and steps, such as ``low_confidence, 16 steps a block of 32, temperature 0``."""
        steps = "" if self.steps is None else f"{self.steps} steps a block of "
        given = {k: self.sampler[k] for k, unset in _UNSET.items() if self.sampler[k] != unset}
        return ", ".join(
            (
                str(self.sampler["name"]),
                f"{steps or 'blocks of '}{self.block_length}",
                *(f"{name.replace('_', ' ')} {value:g}" for name, value in given.items()),
                f"temperature {self.sampler['temperature']:g}",
            )
        )


_UNSET = {"threshold": None, "factor": None, "top_k": 0, "top_p": 1.0}


@dataclass(frozen=True)
class Report:
    """One benchmark of one bundle."""

    bundle: str
    machine: Machine
    noise: Noise
    workload: Workload
    contenders: tuple[Contender, ...]

    @property
    def warnings(self) -> list[str]:
        """Sentences about numbers that deserve mistrust."""
        found = [self.noise.warning] if self.noise.warning else []
        wide = [one for one in self.contenders if one.speed.seconds.width > NOISY]
        found += [
            f"the answers of {one.name} took {one.speed.seconds.p10:.3g} to"
            f" {one.speed.seconds.p90:.3g} s (p10 to p90): differences of"
            f" {one.speed.seconds.width:.0%} mean nothing"
            for one in wide
        ]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return everything as one JSON object, what is derived included."""
        data: dict[str, Any] = {**asdict(self), "warnings": self.warnings}
        for contender, made in zip(self.contenders, data["contenders"], strict=True):
            made["phases"] = [_phase(phase) for phase in contender.phases]
            made["scores"] = [
                {**asdict(score), "accuracy": score.accuracy} for score in contender.scores
            ]
        return data


def _phase(phase: Phase) -> dict[str, Any]:
    profile = None if phase.profile is None else phase.profile.model_dump()
    return {**asdict(phase), "profile": profile, "ratio": phase.ratio}
