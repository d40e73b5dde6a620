"""A report as one page that needs nothing else."""

import unicodedata

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dlmc.validate.plots import layer_plot, output_plot
from dlmc.validate.report import Report

_SHOWN = {"\n": "⏎", "\t": "⇥", " ": "␣"}
_LONGEST = 40  # characters of a token that are shown


def render(report: Report) -> str:
    """Return the page; the same report gives the same page."""
    environment = Environment(
        loader=PackageLoader("dlmc.validate", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    # What matplotlib drew has escaped the names in it.
    layers = Markup(layer_plot(report.layers)) if report.layers else None  # noqa: S704
    outputs = Markup(output_plot(report.rows))  # noqa: S704
    template = environment.get_template("page.html.jinja")
    return template.render(report=report, layers=layers, outputs=outputs)


def visible(text: str) -> str:
    """Return a token as something one can see: no blanks, nothing that steers a page."""
    shown = "".join(_SHOWN.get(symbol, symbol) for symbol in text)
    shown = "".join("�" if unicodedata.category(symbol)[0] == "C" else symbol for symbol in shown)
    return shown[:_LONGEST] or "∅"
