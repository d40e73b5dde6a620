import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from dlmc.validate.plots import layer_plot, output_plot
from dlmc.validate.report import Layers, PointError, Row
from dlmc_runtime.manifest import Tolerance


def _layers(*errors, name="layers.{}"):
    points = (
        PointError(name.format(i), error, error, error, error < 0.1)
        for i, error in enumerate(errors)
    )
    return Layers("graph", 0.1, 0.3, tuple(points))


def _row(name, by_forward, atol=1e-3):
    return Row(name, 4, 0, 0.5, Tolerance(atol=atol), True, None, by_forward)


ROWS = (
    _row("entropy", (1e-4, None, 2e-3)),
    _row("present", (None, 1e-5, None)),
    _row("top_ids", (0.0, 0.0), atol=0.0),
)


@pytest.fixture(params=["layers", "outputs"])
def plot(request):
    return layer_plot(_layers(0.01, 0.2, 0.0)) if request.param == "layers" else output_plot(ROWS)


def test_a_plot_is_one_svg_element_that_says_what_it_shows(plot):
    root = ElementTree.fromstring(plot)  # noqa: S314
    assert root.tag.endswith("svg")
    assert root.get("role") == "img"
    assert root.get("aria-label")


def test_a_plot_takes_the_colour_of_the_text_around_it_and_nothing_from_outside(plot):
    assert "currentColor" in plot
    assert "#010203" not in plot
    assert "<script" not in plot
    links = [part.split('"')[0] for part in plot.split('href="')[1:]]
    assert all(link.startswith("#") for link in links)
    assert "<style" not in plot or "@import" not in plot


def test_the_ids_of_two_plots_on_one_page_differ():
    def ids(plot):
        return {part.split('"')[0] for part in plot.split(' id="')[1:]}

    one, other = ids(layer_plot(_layers(0.1))), ids(output_plot(ROWS))
    assert one
    assert other
    assert not one & other


def test_references_inside_a_plot_still_point_at_something(plot):
    ids = {part.split('"')[0] for part in plot.split(' id="')[1:]}
    uses = {part.split('"')[0] for part in plot.split('href="#')[1:]}
    clips = {part.split(")")[0] for part in plot.split("url(#")[1:]}
    assert uses
    assert uses | clips <= ids


def test_the_same_report_gives_the_same_plot(plot, request):
    again = layer_plot(_layers(0.01, 0.2, 0.0)), output_plot(ROWS)
    assert plot in again


def test_the_label_names_the_worst_layer():
    plot = layer_plot(_layers(0.01, 0.25, 0.02))
    assert 'aria-label="Relative error of 3 layers, tolerance 0.1;' in plot
    assert "0.25 at layers.1" in plot


def test_numbers_that_no_axis_holds_leave_gaps():
    assert layer_plot(_layers(0.0, math.inf, math.nan))
    assert layer_plot(_layers())
    assert output_plot((_row("entropy", (math.inf, 0.0, None)),))
    assert output_plot(())


def test_axes_are_labelled_with_plain_numbers(plot):
    assert "mathdefault" not in plot
    assert ">0.1<" in plot


def test_only_numbers_are_drawn_over_the_forwards():
    shares = _row("top_ids", (0.5, 0.5), atol=0.1)
    assert "top_ids" not in output_plot((*ROWS, shares))
    assert ">entropy<" in output_plot(ROWS).replace("\n", "")


def test_many_layers_are_not_all_written_out():
    plot = layer_plot(_layers(*[0.01] * 80))
    assert 20 <= plot.count("layers.") <= 30


def test_names_are_text_whatever_they_hold():
    evil = 'layers.{}"><script>alert(1)</script>$\\frac{{'
    plot = layer_plot(_layers(0.2, 0.1, name=evil))
    assert "<script" not in plot
    ElementTree.fromstring(plot)  # noqa: S314
    row = replace(ROWS[0], output="<script>$x_")
    assert "<script" not in output_plot((row,))
