"""A benchmark as a picture: what a forward takes beside its floor, and tokens a second."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlmc.bench.report import Phase, Report
from dlmc_runtime.errors import DlmcError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png")
_BAR, _FLOOR = "#4878a8", "#d1495b"


def check(path: Path) -> None:
    """Refuse what cannot be drawn before anything is measured for it.

    Raises:
        UsageError: the suffix names no format, or the folder is missing.
        DlmcError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path} names no picture", f"end it in {' or '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", "make it first")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise DlmcError(
            "--plot needs matplotlib, which is not installed", "pip install 'dlmc[validate]'"
        ) from None


def draw(report: Report, path: Path) -> None:
    """Draw a report into ``path``, an SVG or PNG by its suffix.

    Raises:
        DlmcError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    bars = [
        (f"{contender.name}\n{label(phase)}", phase)
        for contender in report.contenders
        for phase in contender.phases
    ]
    figure = Figure(figsize=(11, 1.8 + 0.5 * max(len(bars), 2 * len(report.contenders))))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _forwards(left, bars)
    _tokens(right, report)
    figure.suptitle(f"{report.bundle}: {report.workload.pace}")
    figure.tight_layout()
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise DlmcError(f"cannot write {path} ({error.strerror})", "check the path") from None


def label(phase: Phase) -> str:
    """Return a phase in a few words."""
    return f"{phase.kind} {phase.profile}" if phase.profile else phase.kind


def _forwards(axes: "Axes", bars: list[tuple[str, Phase]]) -> None:
    """Draw the median of each kind of forward, p10 to p90 as a line, and its floor."""
    for place, (_, phase) in enumerate(bars):
        measured = phase.alone or phase.in_loop
        if measured is None:
            continue
        low, high = measured.median - measured.p10, measured.p90 - measured.median
        errors = [[1e3 * low], [1e3 * high]]
        axes.barh(place, 1e3 * measured.median, 0.6, color=_BAR, xerr=errors, capsize=3)
        if phase.floor is not None:
            axes.plot([1e3 * phase.floor.seconds] * 2, [place - 0.4, place + 0.4], color=_FLOOR)
    axes.set_yticks(range(len(bars)), [words for words, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms a forward (median, p10 to p90; red: floor)")


def _tokens(axes: "Axes", report: Report) -> None:
    """Draw useful tokens a second of every contender."""
    for place, contender in enumerate(report.contenders):
        speed = contender.speed.useful_per_second
        errors = [[speed.median - speed.p10], [speed.p90 - speed.median]]
        axes.barh(place, speed.median, 0.6, color=_BAR, xerr=errors, capsize=3)
    names = [contender.name for contender in report.contenders]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("tokens of the answer a second")
