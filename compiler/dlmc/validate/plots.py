"""Plots of a report as SVG that stands in a page: no outside fonts, the colours of its text."""

import html
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dlmc.validate.report import Layers, Row
from dlmc.validate.tolerances import SHARES

_INK = "#010203"  # stands for the colour of the text around the plot
_SETTINGS: dict[str, Any] = {
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 9,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "svg.fonttype": "none",
    "text.color": _INK,
    "text.parse_math": False,  # names come from a file
    "xtick.color": _INK,
    "ytick.color": _INK,
}
# Told apart by style as well as by colour; both are legible on white and on black.
_LINES = (
    ("#0072b2", "-", "o"),
    ("#d55e00", "--", "s"),
    ("#009e73", "-.", "^"),
    ("#cc79a7", ":", "D"),
    ("#888888", "-", "x"),
    ("#e69f00", "--", "v"),
)
_LONGEST = 24  # characters of a layer's name
_LIMIT = "#d55e00"


def layer_plot(layers: Layers) -> str:
    """Return the error of every layer: on its own, with what is carried, and the tolerance."""
    with _figure("layers") as (figure, axes):
        way = layers.way
        names = [one.point[:_LONGEST] for one in way]
        series: dict[str, list[Any]] = {
            "by itself": [one.error for one in way],
            "with the layers before": [one.carried for one in way],
        }
        for (label, errors), (color, style, marker) in zip(series.items(), _LINES, strict=False):
            axes.plot(
                range(len(names)),
                [_positive(error) for error in errors],
                color=color,
                linestyle=style,
                marker=marker,
                markersize=4,
                label=label,
            )
        axes.axhline(layers.tolerance, color=_LIMIT, linestyle=":", label="tolerance")
        every = max(1, len(names) // 20)
        axes.set_xticks(range(0, len(names), every), names[::every], rotation=45, ha="right")
        axes.set_ylabel("relative error")
        _scale(axes, [x for errors in series.values() for x in errors], layers.tolerance)
        figure.legend(loc="outside right upper")
        label = f"Relative error of {len(names)} layers, tolerance {layers.tolerance:g}"
        if way:
            worst = max(way, key=lambda one: one.error)
            label += f"; the largest by itself is {worst.error:.3g} at {worst.point}"
        return _svg(figure, "layers", label)


def output_plot(rows: Sequence[Row]) -> str:
    """Return the difference of every numeric output in every forward, in tolerances."""
    numeric = [row for row in rows if row.output not in SHARES and row.tolerance.atol]
    shown = [row for row in numeric if any(row.by_forward)]
    with _figure("outputs") as (figure, axes):
        for index, row in enumerate(shown):
            color, style, marker = _LINES[index % len(_LINES)]
            values = [
                _positive(None if x is None else x / row.tolerance.atol) for x in row.by_forward
            ]
            axes.plot(
                range(1, len(values) + 1),
                values,
                color=color,
                linestyle=style,
                marker=marker,
                markersize=3,
                label=row.output,
            )
        axes.axhline(1.0, color=_LIMIT, linestyle=":", label="tolerance")
        axes.set_xlabel("recorded forward")
        axes.set_ylabel("difference / tolerance")
        shares = [x / row.tolerance.atol for row in shown for x in row.by_forward if x]
        _scale(axes, shares, 1.0)
        figure.legend(loc="outside right upper")
        names = ", ".join(row.output for row in shown) or "no output"
        return _svg(figure, "outputs", f"Difference over tolerance in every forward of {names}")


def _scale(axes: Any, values: Sequence[float | None], limit: float) -> None:
    """Let a logarithmic axis hold all values that it can, and the limit."""
    held = [x for x in (*values, limit) if x and math.isfinite(x)] or [1.0]
    axes.set_ylim(min(held) / 3, max(held) * 3)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")  # without mathematics, which we do not let it parse


def _positive(value: float | None) -> float:
    """Return what a logarithmic axis can show, NaN for what it cannot."""
    return value if value and math.isfinite(value) else math.nan


@contextmanager
def _figure(salt: str) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes under our settings, without the state of pyplot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A salt makes the ids of an SVG the same every time, and its own on the page.
    settings: Any = {**_SETTINGS, "svg.hashsalt": f"dlmc-{salt}"}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(9.0, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.grid(visible=True)
        yield figure, axes


def _svg(figure: Any, salt: str, label: str) -> str:
    """Return the figure as an ``svg`` element that says what it shows."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    # Ids that matplotlib gives by counting would be twice on a page.
    text = re.sub(r'(id="|url\(#|href="#)(?=[a-zA-Z])', rf"\1{salt}-", text)
    named = f'<svg role="img" aria-label="{html.escape(label, quote=True)}"'
    return text.replace("<svg", named, 1)
