from dataclasses import replace
from html.parser import HTMLParser

import pytest

from dlmc.validate.page import render, visible
from dlmc.validate.report import Cell, Divergence, Layers, Place, PointError, Report, Row
from dlmc_runtime.manifest import Tolerance

PLACE = Place("entropy", 0, 2, 7, (0, 1), 1.5, 0.5)
BAD = Row("entropy", 8, 1, 1.0, Tolerance(atol=1e-3, rtol=1e-4), False, PLACE, (1e-4, 1.0))
GOOD = Row("top_ids", 8, 0, 0.0, Tolerance(atol=0.0), True)
LAYERS = Layers(
    "graph",
    0.1,
    0.3,
    (
        PointError("layers.0.mlp.up_proj", 0.01, 0.02, None, True),
        PointError("layers.0", 0.02, 0.03, 0.02, True),
        PointError("layers.1.mlp.up_proj", 0.5, 0.9, None, False, PLACE),
        PointError("layers.1", 0.4, 0.8, 0.41, False, PLACE),
    ),
)
DIVERGENCE = Divergence(
    0,
    2,
    6,
    (Cell("a", False, False), Cell("", True, True)),
    (Cell("a", False, False), Cell("b", False, True)),
)
REPORT = Report(
    bundle="tiny",
    engine="onnxruntime-cpu-int8",
    against="torch",
    precision="float32",
    quantization="int8",
    versions={"dlmc": "1.0"},
    prompts=("What is 12 + 7?",),
    forwards=2,
    rows=(GOOD, BAD),
    layers=LAYERS,
    divergence=DIVERGENCE,
)


class Reader(HTMLParser):
    """Reads a page as a browser would: elements, their attributes and texts."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data.strip())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page():
    return Reader(render(REPORT))


def test_a_failure_is_said_in_the_sentence_of_the_command_line(page):
    assert "entropy at prompt 0, forward 2, position 7 [0,1]: 1.5, not 0.5 (1 of 8 differ)" in (
        page.texts
    )
    assert "DIFFERENT" in page.texts


def test_agreement_is_said(page):
    good = replace(REPORT, rows=(GOOD,), layers=None, divergence=None)
    texts = Reader(render(good)).texts
    assert "Everything agrees within tolerance." in texts
    assert "The layers were not compared." in texts
    assert "The canvases never differ." in texts


def test_plots_stand_in_the_page_with_their_descriptions(page):
    plots = page.all("svg")
    assert len(plots) == 2
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in plots)


def test_layers_and_the_parts_that_are_wrong_are_listed(page):
    assert "layers.1.mlp.up_proj is the first to leave the tolerance." in page.texts
    assert "layers.0" in page.texts
    assert "layers.0.mlp.up_proj" not in page.texts


def test_two_canvases_stand_side_by_side_and_point_at_what_differs(page):
    canvases = [one for one in page.all("ol") if one.get("class") == "canvas"]
    assert len(canvases) == 2
    different = [one for one in page.all("li") if "different" in (one.get("class") or "")]
    assert [one["aria-label"] for one in different] == [
        "position 7 differs: masked",
        "position 7 differs: b",
    ]
    assert "▒" in page.texts


def test_a_page_needs_nothing_from_outside(page):
    assert not page.all("script") + page.all("link") + page.all("img")
    policy = next(one for one in page.all("meta") if one.get("http-equiv"))
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"].startswith("default-src 'none'")
    assert page.all("html")[0]["lang"] == "en"
    assert "prefers-color-scheme: dark" in "".join(page.texts)


def test_the_same_report_gives_the_same_page():
    assert render(REPORT) == render(REPORT)


EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def test_whatever_comes_from_a_bundle_is_text():
    cell = Cell(EVIL, False, True)
    place = replace(PLACE, output=EVIL, ours=EVIL)
    report = replace(
        REPORT,
        bundle=EVIL,
        engine=EVIL,
        against=EVIL,
        versions={EVIL: EVIL},
        prompts=(EVIL,),
        notes=(EVIL,),
        rows=(replace(BAD, output=EVIL, where=place),),
        layers=replace(LAYERS, points=(PointError(EVIL, 0.5, 0.5, 0.5, False, place),)),
        divergence=Divergence(0, 1, 0, (cell,), (cell,)),
    )
    reader = Reader(render(report))
    assert not reader.all("script") + reader.all("img")
    assert not [one for _, one in reader.elements for key in one if key.startswith("on")]


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("abc", "abc"),
        (" a", "␣a"),
        ("\n", "⏎"),
        ("\t", "⇥"),
        ("", "∅"),
        ("\x1b[31m", "�[31m"),
        ("\u202ex", "�x"),
        ("\u200b", "�"),
        ("é", "é"),
        ("x" * 100, "x" * 40),
    ],
)
def test_a_token_is_shown_as_something_to_see(token, shown):
    assert visible(token) == shown
