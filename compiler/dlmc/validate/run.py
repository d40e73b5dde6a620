"""`dlmc validate`: built engines against a reference, on states of real generations."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from dlmc.validate.canvases import diverge, diverged_answers, find_state
from dlmc.validate.compare import compare_generations, compare_states, layer_row
from dlmc.validate.engines import choose_engines
from dlmc.validate.layers import choose, compare_layers
from dlmc.validate.page import render
from dlmc.validate.prompts import Wanted
from dlmc.validate.reference import TORCH, is_graph
from dlmc.validate.report import Layers, Report, Row
from dlmc.validate.sources import Live, Recorded, Saved
from dlmc.validate.tolerances import Limits, limits, strict_limits
from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.generate import Generator
from dlmc_runtime.version import __version__

FOLDER = "validation"
_LIBRARIES = ("numpy", "onnxruntime", "polygraphy", "torch")


@dataclass(frozen=True)
class Wishes:
    """What a caller can decide about a validation.

    Attributes:
        engines: which to compare, by target or full name; none means all that run here.
        against: ``torch``, ``graph``, an engine of the bundle, or the path of an
            ``outputs.json``.
        wanted: what to generate from; saved states bring their own.
        layers: also compare inside the network; takes both graphs in memory once more.
        bisect: fail where the layers cannot be compared, instead of noting it.
        page: also write a page to read.
        save_to: where to keep the recorded states for Polygraphy.
    """

    engines: tuple[str, ...] = ()
    against: str = TORCH
    wanted: Wanted = field(default_factory=Wanted)
    layers: bool = True
    bisect: bool = False
    page: bool = True
    save_to: Path | None = None

    @property
    def saved(self) -> Path | None:
        """The file to compare with, where that is what ``against`` names."""
        return Path(self.against) if self.against.endswith(".json") else None


@dataclass(frozen=True)
class Validation:
    """A report for every engine, and notes on engines that were left out."""

    reports: tuple[Report, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every engine agrees."""
        return all(report.ok for report in self.reports)


def validate_bundle(root: Path, wishes: Wishes | None = None) -> Validation:
    """Compare engines with a reference and keep the reports in the bundle.

    The reference generates from every prompt at temperature 0; each of its forwards is replayed
    on the engine and compared. Then the engine generates by itself.

    Args:
        root: the bundle.
        wishes: what to compare with what.

    Raises:
        UsageError: ``wishes`` cannot be meant, or saved states are odd.
        BundleError: the bundle or an engine's record does not load.
        RequestError: a prompt fits no profile of an engine.
        EngineError: an engine does not load or fails, or a report cannot be written.
    """
    wishes = wishes or Wishes()
    # What reads the bundle's weights is torch, the graph, and the other side of the layers.
    weights = wishes.saved is None or wishes.layers
    return validate(Bundle.open(root, weights=weights), wishes)


def validate(bundle: Bundle, wishes: Wishes) -> Validation:
    """Do what `validate_bundle` does with a bundle that was opened already."""
    saved = wishes.saved
    chosen = choose_engines(bundle, wishes.engines, wishes.against)
    source = Saved(bundle, saved) if saved else Live(bundle, wishes.against, wishes.wanted)
    try:
        recorded = {name: source.recorded(one.profiles) for name, one in chosen.engines.items()}
        if wishes.save_to is not None:
            source.save(next(iter(chosen.engines.values())).profiles, wishes.save_to)
        torch = source.torch
        if not any(is_graph(bundle, record) for record in chosen.engines.values()):
            source.close()  # two models in memory are enough
            torch = None
        with np.errstate(all="ignore"):  # what is not finite is in the report
            reports = tuple(
                _validate(bundle, name, record, source.name, recorded[name], torch, wishes)
                for name, record in chosen.engines.items()
            )
    except (ValueError, IndexError, KeyError) as error:
        if saved is None:
            raise
        raise UsageError(
            f"{saved} and the files beside it do not fit together ({error})",
            "save them again with dlmc validate --save-states",
        ) from error
    finally:
        source.close()
    return Validation(reports, chosen.notes)


def _validate(
    bundle: Bundle,
    name: str,
    record: EngineRecord,
    against: str,
    recorded: Recorded,
    torch: TorchEngine | None,
    wishes: Wishes,
) -> Report:
    """Compare one engine, write its report and return it."""
    allowed, strict = limits(bundle.manifest, record), strict_limits(bundle.manifest)
    recording = recorded.recording
    notes: list[str] = []
    with Generator.of(bundle, name) as generator:
        rows = compare_states(recording.states, generator.engine, allowed, strict, name)
        divergence = diverge(rows, recording, generator.engine, generator.text)
        if wishes.wanted.forwards is None:
            answers = _generate(generator, recorded, notes)
            rows.append(compare_generations(answers, recording.answers, recording.starts, allowed))
            divergence = divergence or diverged_answers(answers, recording, generator.text)
    layers = _layers(bundle, record, recorded, rows, torch, allowed, wishes, notes)
    if layers is not None:
        rows.append(layer_row(layers))
    report = Report(
        bundle=bundle.root.absolute().name,
        engine=name,
        against=against,
        precision=record.precision,
        quantization=record.quantization,
        versions=_versions(record),
        prompts=recorded.prompts,
        forwards=len(recording.states),
        rows=tuple(rows),
        layers=layers,
        divergence=divergence,
        notes=tuple(notes),
    )
    _keep(report, bundle.root / FOLDER, page=wishes.page)
    return report


def _generate(generator: Generator, recorded: Recorded, notes: list[str]) -> list[tuple[int, ...]]:
    """Return the engine's own answers; none where it breaks down, as one that answers NaN does."""
    try:
        return [result.tokens for result in generator.run(recorded.requests)]
    except EngineError as error:
        notes.append(f"the engine does not generate: {error.message}")
        return [() for _ in recorded.requests]


def _layers(
    bundle: Bundle,
    record: EngineRecord,
    recorded: Recorded,
    rows: Sequence[Row],
    torch: TorchEngine | None,
    allowed: Limits,
    wishes: Wishes,
    notes: list[str],
) -> Layers | None:
    """Compare the layers where that is wanted, or say why that is not possible."""
    if not (wishes.layers or wishes.bisect):
        return None
    broken = [find_state(recorded.recording, row) for row in rows if not row.ok]
    states = choose(recorded.recording.states, [state for state in broken if state is not None])
    try:
        return compare_layers(bundle, record, states, allowed, torch)
    except EngineError as error:
        if wishes.bisect:
            raise
        notes.append(f"the layers are not compared: {error.message}")
        return None


def _versions(record: EngineRecord) -> dict[str, str]:
    found = {"dlmc": __version__, **record.versions}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def _keep(report: Report, folder: Path, *, page: bool) -> None:
    """Write the report as JSON and, with ``page``, as HTML; an older page does not stay."""
    data, text = folder / f"{report.engine}.json", folder / f"{report.engine}.html"
    with _written(folder):
        folder.mkdir(exist_ok=True)
        data.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        if page:
            text.write_text(render(report), encoding="utf-8")
        else:
            text.unlink(missing_ok=True)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineError(f"{path} cannot be written ({error.strerror})", "make room") from error
