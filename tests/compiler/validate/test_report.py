import json
import math
from dataclasses import replace

from dlmc.validate.report import Cell, Divergence, Layers, Place, PointError, Report, Row, sentence
from dlmc_runtime.manifest import Tolerance

PLACE = Place("entropy", 1, 5, 17, (0, 3), 2.5, 1.25)
BAD = Row("entropy", 64, 2, 1.25, Tolerance(atol=1e-3), False, PLACE, (None, 1.25))
GOOD = Row("top_ids", 64, 0, 0.0, Tolerance(atol=0.0), True)
REPORT = Report(
    bundle="b",
    engine="onnxruntime-cpu",
    against="torch",
    precision="float32",
    quantization="none",
    versions={"dlmc": "1"},
    prompts=("hello",),
    forwards=2,
    rows=(GOOD, BAD),
)


def test_one_disagreement_is_enough():
    assert not REPORT.ok
    assert replace(REPORT, rows=(GOOD,)).ok


def test_a_sentence_names_output_forward_position_and_values():
    assert sentence(BAD) == (
        "entropy at prompt 1, forward 5, position 17 [0,3]: 2.5, not 1.25 (2 of 64 differ)"
    )
    assert REPORT.failures == (sentence(BAD),)


def test_a_whole_generation_has_no_forward():
    place = Place("generation", 0, 0, 9, (), "no token", 3)
    assert str(place) == "prompt 0, position 9: no token, not 3"


def test_the_name_in_a_sentence_is_that_of_the_place():
    row = replace(BAD, output="present", where=replace(PLACE, output="present.1.key"))
    assert sentence(row).startswith("present.1.key at ")


def test_json_has_no_number_that_json_lacks():
    place = replace(PLACE, ours=math.nan)
    report = replace(REPORT, rows=(replace(BAD, difference=math.inf, where=place),))
    text = json.dumps(report.to_json(), allow_nan=False)
    row = json.loads(text)["rows"][0]
    assert row["difference"] is None
    assert row["where"]["ours"] is None
    assert row["by_forward"] == [None, 1.25]


def test_json_says_what_the_report_is():
    data = REPORT.to_json()
    assert (data["schema_version"], data["ok"]) == (1, False)
    assert data["failures"] == [sentence(BAD)]
    assert data["rows"][1]["tolerance"] == {"atol": 1e-3, "rtol": 0.0}


def test_the_documentation_names_every_key(repository):
    page = (repository / "docs" / "validation.md").read_text(encoding="utf-8")
    point = PointError("layers.0", 0.5, 0.5, 0.5, False, PLACE)
    cell = Cell("a", False, False)
    report = replace(
        REPORT,
        layers=Layers("graph", 0.1, 0.3, (point,)),
        divergence=Divergence(0, 1, 0, (cell,), (cell,)),
    )

    def keys(value):
        if isinstance(value, dict):
            for key, one in value.items():
                yield key
                yield from keys(one)
        elif isinstance(value, list):
            for one in value:
                yield from keys(one)

    data = report.to_json()
    del data["versions"]["dlmc"]
    missing = {key for key in keys(data) if f"`{key}`" not in page}
    assert not missing


def test_the_first_layer_is_the_first_that_is_wrong():
    points = (
        PointError("layers.0", 0.01, 0.0, 0.01, True),
        PointError("layers.1.mlp.up_proj", 0.3, 0.0, None, False),
        PointError("layers.1", 0.9, 0.0, 0.9, False),
    )
    layers = Layers("graph", 0.1, 0.3, points)
    assert layers.first is points[1]
    assert [one.point for one in layers.way] == ["layers.0", "layers.1"]
    assert Layers("graph", 0.1, 0.3, points[:1]).first is None
