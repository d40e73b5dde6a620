"""What `samplers.py` measures as a page of tables and as a picture."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import Cell, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Cell]
_LOOKS = {
    "exact": ("#4878a8", "o"),
    "none": ("#4878a8", "o"),
    "prefix": ("#6aa84f", "^"),
    "dual": ("#d1495b", "s"),
}


def dicts(table: Table) -> list[Row]:
    """Return rows by column name."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def groups(rows: Sequence[Row], *columns: str) -> dict[tuple[Cell, ...], list[Row]]:
    """Return rows that agree in ``columns``, in their order."""
    found: dict[tuple[Cell, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in columns), []).append(row)
    return found


def markdown(table: Table) -> str:
    """Return a page: a table for every checkpoint, three columns for every cache."""
    rows = dicts(table)
    parts = ["# Samplers, measured", _INTRODUCTION.format(**rows[0])]
    for (checkpoint,), own in groups(rows, "checkpoint").items():
        parts += [f"## {checkpoint}", "\n".join(_lines(own))]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = (
    "Written by `benchmarks/samplers.py`: {problems} held-out problems, seed {seed}, temperature 0."
    " For every cache: exact answers, forwards an answer, tokens per forward (TPF)."
)


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    caches = [str(cache) for (cache,) in groups(rows, "cache")]
    heads = [f"{cache}: exact % | forwards | TPF" for cache in caches]
    yield f"| sampler | options | {' | '.join(heads)} |"
    yield "|---|---|" + "--:|" * (3 * len(caches))
    for (sampler, options), own in groups(rows, "sampler", "options").items():
        by_cache = {row["cache"]: row for row in own}
        cells = [_cells(by_cache.get(cache)) for cache in caches]
        yield f"| `{sampler}` | {options} | {' | '.join(cells)} |"


def _cells(row: Row | None) -> str:
    if row is None:
        return "| |"
    exact, forwards, tpf = (
        float(row[name]) for name in ("exact %", "forwards an answer", "tokens per forward")
    )
    return f"{exact:.1f} | {forwards:.1f} | {tpf:.2f}"


def frontier(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that no other beats: more right in no more forwards, fewest first."""
    found: list[Row] = []
    best = -1.0
    for row in sorted(rows, key=lambda r: (float(r["forwards an answer"]), -float(r["exact %"]))):
        if float(row["exact %"]) > best:
            found.append(row)
            best = float(row["exact %"])
    return found


def picture(table: Table, path: Path) -> None:
    """Draw accuracy against forwards, a panel a checkpoint; what nothing beats has its name."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = groups(dicts(table), "checkpoint")
    figure = Figure(figsize=(6 * len(panels), 5))
    for axes, ((name,), rows) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _panel(axes, rows)
        axes.set_title(str(name))
    figure.tight_layout()
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dlmc"}):
        figure.savefig(path, metadata=metadata)


def _panel(axes: "Axes", rows: Sequence[Row]) -> None:
    for (cache,), own in groups(rows, "cache").items():
        color, marker = _LOOKS[str(cache)]
        x = [float(row["forwards an answer"]) for row in own]
        y = [float(row["exact %"]) for row in own]
        axes.scatter(x, y, s=22, c=color, marker=marker, alpha=0.7, label=f"cache {cache}")
    for place, row in enumerate(frontier(rows)):
        axes.annotate(
            f"{row['sampler']}, {row['options']}",
            (float(row["forwards an answer"]), float(row["exact %"])),
            xytext=(8, -4 - 9 * (place % 2)),
            textcoords="offset points",
            fontsize=7,
        )
    axes.set_xlabel("forwards an answer")
    axes.set_ylabel("exact answers, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
